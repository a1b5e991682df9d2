"""``reliq info``: queues, counts and workers, for people and as JSON."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..facts import QueueFacts, limit_remarks, queue_facts
from ..lifecycle import STORED, State
from ..shown import span
from .common import EXIT_OK, add_command
from .output import Column, add_json, clear_screen, write, write_json, write_table
from .targets import Place, add_place, add_queue, open_place, queue_name
from .times import positive_seconds

if TYPE_CHECKING:
    from argparse import _SubParsersAction

_EPILOG = """\
examples:
  reliq info --url redis://localhost:6379/0
  reliq info emails -i 2                           again every 2 seconds, until Ctrl-C
  reliq info --url file:///var/lib/app/queue emails
  reliq info --json | jq 'select(.counts.failed > 0) | .queue'

`waits` is how long the job that comes next has been ready; without free workers it grows.
exit codes: 0 done, 1 storage trouble or no such queue, 2 wrong usage
"""


#: States whose counts people see even when there are none; few queues have jobs in the others.
_USUAL = frozenset({State.QUEUED, State.PROCESSING, State.COMPLETED, State.FAILED})


def add_parser(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Describe the command."""
    parser = add_command(
        commands, "info", run, help="show queues, counts and workers",
        description="Show queues: how many jobs are in which state, whether the queue is paused, its limits, and\n"
        "which workers serve it with how many jobs in hand. Changes nothing.", epilog=_EPILOG,
    )  # fmt: skip
    add_queue(parser)
    parser.add_argument(
        "-i", "--interval", type=positive_seconds, metavar="SECONDS", help="show it again and again, so often"
    )
    add_place(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Print what there is, once or until interrupted."""
    with open_place(args) as place:
        name = queue_name(args)
        if args.interval is None:
            show(args, place, name)
            return EXIT_OK
        try:
            while True:
                facts = collect(place, name)  # before the screen is cleared: it must not stay empty meanwhile
                if not args.json and not clear_screen():
                    write("")
                show(args, place, name, facts)
                time.sleep(args.interval)
        except KeyboardInterrupt:  # the way to end it
            return EXIT_OK


def show(args: argparse.Namespace, place: Place, name: str | None, facts: Sequence[QueueFacts] | None = None) -> None:
    """Print one round."""
    facts = collect(place, name) if facts is None else facts
    if args.json:
        for fact in facts:
            write_json(fact)
    else:
        write(f"storage {', '.join(storage.url for storage in place.storages)}\n")
        render(facts)


def collect(place: Place, name: str | None = None) -> list[QueueFacts]:
    """The facts of one queue or of all."""
    return [queue_facts(queue) for queue in place.all(name)]


def render(facts: Sequence[QueueFacts]) -> None:
    """Two tables."""
    columns = [Column("queue", lambda fact: fact.queue)]
    shown = [state.value for state in STORED if state in _USUAL or any(fact.counts.get(state, 0) for fact in facts)]
    columns += [Column(state, _count(state), is_right=True) for state in shown]
    columns += [
        Column("waits", lambda fact: None if fact.oldest_wait is None else span(fact.oldest_wait), is_right=True),
        Column("", _remarks),
    ]
    write_table(facts, columns, "no queues yet")
    if not facts:
        return
    write("")
    workers = [(worker, fact.queue) for fact in facts for worker in fact.workers]
    columns = [
        Column("worker", lambda row: row[0].worker_id),
        Column("queue", lambda row: row[1]),
        Column("threads", lambda row: row[0].threads, is_right=True),
        Column("processing", lambda row: row[0].processing, is_right=True),
    ]
    write_table(workers, columns, "no workers")


def _count(state: str) -> Any:
    return lambda fact: fact.counts.get(state, 0)


def _remarks(fact: QueueFacts) -> str:
    return ", ".join([*(["paused"] if fact.is_paused else []), *limit_remarks(fact.limits)])
