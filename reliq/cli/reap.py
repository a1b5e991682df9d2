"""``reliq reap``: looks after queues without running their jobs."""

from __future__ import annotations

import argparse
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING

from ..job import Event
from ..lifecycle import State
from ..queue import Queue
from ..reaper import Reaper
from ..shown import span
from ..storage.base import MAX_BATCH, worker_label
from .audit import is_dead
from .common import EXIT_OK, UsageError, add_command
from .output import Column, add_json, note, write, write_json, write_table
from .targets import Place, add_place, add_queue, open_place, queue_name

if TYPE_CHECKING:
    from argparse import _SubParsersAction

_EPILOG = """\
examples:
  reliq reap --once --dry-run      what is due, expired, or held by dead workers
  reliq reap --once                do it once, from cron say
  reliq reap                       go on until SIGTERM or Ctrl-C

Every worker does this by itself; it is for storages that have producers only, or pools with reaper=False.
exit codes: 0 done, 1 storage trouble, 2 wrong usage
"""
#: A dry run looks at so many jobs of a state.
_LOOKED_AT = 10 * MAX_BATCH


@dataclass(frozen=True, slots=True)
class Plan:
    """Something that a reap would do."""

    queue: str
    what: str
    id: str
    text: str


def add_parser(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Describe the command."""
    parser = add_command(
        commands, "reap", run, help="recover stalled jobs, promote due ones, carry out schedules",
        description="Recover the jobs of dead workers and of expired leases, promote due jobs, carry out schedules,\n"
        "remove what expired.", epilog=_EPILOG,
    )  # fmt: skip
    add_queue(parser)
    parser.add_argument("--once", action="store_true", help="one round, then end")
    parser.add_argument(
        "--dry-run", action="store_true", help="with --once: only say what would be done; changes nothing"
    )
    add_place(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Reap, or say what that would do."""
    if args.dry_run and not args.once:
        raise UsageError("--dry-run goes with --once")
    with open_place(args) as place:
        name = queue_name(args)
        if args.dry_run:
            _tell_plan(args, [plan for queue in place.all(name) for plan in _plan(queue)])
        elif args.once:
            _reap_once(args, place, name)
        else:
            _reap_on(args, place, name)
    return EXIT_OK


def _reapers(place: Place, name: str | None) -> list[Reaper]:
    if name is not None:
        return [Reaper(place.find(name))]
    return [Reaper(storage) for storage in place.storages]


def _reap_once(args: argparse.Namespace, place: Place, name: str | None) -> None:
    count = 0
    for reaper in _reapers(place, name):
        reaper.on("*", _teller(args))
        count += reaper.run_once()
    if not args.json:
        write(f"{count} change(s)")


def _reap_on(args: argparse.Namespace, place: Place, name: str | None) -> None:
    stop = threading.Event()

    def end(_: int, __: FrameType | None) -> None:
        stop.set()

    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.signal(number, end) for number in numbers}
    reapers = _reapers(place, name)
    try:
        for reaper in reapers:
            reaper.on("*", _teller(args))
            reaper.start()
        note("looking after the queues until SIGTERM or Ctrl-C")
        while not stop.wait(0.2):  # a signal that comes just before a wait does not end it
            pass
    finally:
        for reaper in reapers:
            reaper.stop()
        for number, handler in before.items():
            signal.signal(number, handler)


def _teller(args: argparse.Namespace) -> Callable[[Event], None]:
    def tell(event: Event) -> None:
        if args.json:
            write_json({"event": event.name, "queue": event.queue, "id": event.id})
        else:
            write(f"{event.name} {event.queue} {event.id!r}")

    return tell


def _tell_plan(args: argparse.Namespace, plans: list[Plan]) -> None:
    if args.json:
        for plan in plans:
            write_json(plan)
        return
    columns = [
        Column("queue", lambda plan: plan.queue),
        Column("would", lambda plan: plan.what),
        Column("what", lambda plan: plan.id),
        Column("why", lambda plan: plan.text),
    ]
    write_table(plans, columns, "nothing to do")
    note("the lease of a job whose worker is alive cannot be seen from here: an expired one is not listed")


def _plan(queue: Queue) -> Iterator[Plan]:
    """What public reads tell, by this machine's clock."""
    now = time.time()
    for worker in queue.storage.workers(queue.name):
        if is_dead(worker):
            late = span(now - worker.expires_at_ms / 1000)
            text = f"no heartbeat for {late} more than allowed, {worker.processing} job(s)"
            yield Plan(queue.name, "recover", worker_label(worker.key), text)
    for state in (State.SCHEDULED, State.FAILING):
        for id, at_ms in _times(queue, state):
            if at_ms is not None and at_ms / 1000 <= now:
                yield Plan(queue.name, "promote", id, f"{state.value}, due for {span(now - at_ms / 1000)}")
    for state in (State.COMPLETED, State.FAILED):
        for id, at_ms in _times(queue, state):
            if at_ms is not None and at_ms / 1000 <= now:
                yield Plan(queue.name, "remove", id, f"{state.value}, expired for {span(now - at_ms / 1000)}")
    for info in queue.schedules.list():
        if info.error is None and info.next_at <= now:
            yield Plan(queue.name, "enqueue", info.name, f"its tick is due for {span(now - info.next_at)}")


def _times(queue: Queue, state: State) -> Iterator[tuple[str, int | None]]:
    cursor: str | None = None
    left = _LOOKED_AT
    while left > 0:
        ids, cursor = queue.storage.list_ids(queue.name, state, cursor, min(left, MAX_BATCH))
        for snapshot in queue.storage.read(queue.name, ids, payload=False) if ids else ():
            if snapshot.state is state:
                yield snapshot.id, snapshot.due_at_ms if snapshot.due_at_ms is not None else snapshot.expires_at_ms
        left -= len(ids)
        if cursor is None:
            return
