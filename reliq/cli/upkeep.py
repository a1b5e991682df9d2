"""``reliq pause``, ``resume``, ``purge`` and ``delete``: what is done to a queue as a whole."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from ..lifecycle import State
from .common import EXIT_OK, add_command
from .confirm import add_yes, confirm
from .output import add_json, write, write_json
from .targets import add_place, add_queue, open_place, queue_name

if TYPE_CHECKING:
    from argparse import _SubParsersAction

_EXITS = "exit codes: 0 done, 1 storage trouble, no such queue, or the question was answered with no, 2 wrong usage\n"


def add_parser(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Describe the commands."""
    for name, run, help, description in (
        ("pause", run_pause, "hand out no more jobs of a queue",
         "Hand out no more jobs of a queue, in any process. Running jobs go on, new ones are accepted."),
        ("resume", run_resume, "end a pause", "Hand out jobs of a paused queue again."),
        ("purge", run_purge, "remove all jobs of a queue that do not run",
         "Remove every job that is not running, whatever its state, results and dead letters included. Asks first."),
        ("delete", run_delete, "remove a queue with all that is in it",
         "Remove a queue with all its jobs, running ones included, its schedules and limits. Asks first."),
    ):  # fmt: skip
        asks = name in ("purge", "delete")
        parser = add_command(
            commands, name, run, help=help, description=description,
            epilog=f"example:\n  reliq {name} emails{' --yes' if asks else ''}\n\n{_EXITS}",
        )  # fmt: skip
        add_queue(parser)
        if asks:
            add_yes(parser)
        add_place(parser)
        add_json(parser)


def run_pause(args: argparse.Namespace) -> int:
    """Pause."""
    with open_place(args) as place:
        queue = place.find(queue_name(args))
        queue.pause()
    return _report(args, queue.name, "paused")


def run_resume(args: argparse.Namespace) -> int:
    """Resume."""
    with open_place(args) as place:
        queue = place.find(queue_name(args))
        queue.resume()
    return _report(args, queue.name, "resumed")


def run_purge(args: argparse.Namespace) -> int:
    """Purge, once that is agreed."""
    with open_place(args) as place:
        queue = place.find(queue_name(args))
        counts = queue.storage.counts(queue.name)
        running = counts[State.PROCESSING]
        confirm(args, f"Remove {sum(counts.values()) - running} job(s) of queue {queue.name!r} ({running} run on)?")
        count = queue.purge()
    return _report(args, queue.name, "purged", count=count)


def run_delete(args: argparse.Namespace) -> int:
    """Delete, once that is agreed."""
    with open_place(args) as place:
        queue = place.find(queue_name(args))
        count = sum(queue.counts().values())
        schedules = len(queue.storage.schedules(queue.name))
        confirm(args, f"Delete queue {queue.name!r} with {count} job(s) and {schedules} schedule(s)?")
        count = queue.delete()
    return _report(args, queue.name, "deleted", count=count)


def _report(args: argparse.Namespace, queue: str, status: str, **more: Any) -> int:
    if args.json:
        write_json({"queue": queue, "status": status, **more})
    else:
        write(f"{queue}: {status}" + (f", {more['count']} job(s)" if more else ""))
    return EXIT_OK
