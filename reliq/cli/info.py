"""``reliq info``: queues, counts and workers of a storage, for people and as JSON."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from ..lifecycle import STORED
from ..storage.base import Storage, worker_label
from ..validate import check_queue_name
from .common import EXIT_OK, CommandError, UsageError, add_url, file_directory, find_url, is_memory, open_storage

if TYPE_CHECKING:
    from argparse import _SubParsersAction

_EPILOG = """\
examples:
  reliq info --url redis://localhost:6379/0
  reliq info --url file:///var/lib/app/queue emails
  reliq info --json | jq '.queues[] | select(.counts.failed > 0) | .queue'
"""


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """One worker of a queue."""

    worker_id: str
    threads: int
    processing: int


@dataclass(frozen=True, slots=True)
class QueueFacts:
    """One queue."""

    queue: str
    is_paused: bool
    counts: dict[str, int]
    workers: list[WorkerFacts]


def add_parser(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Describe the command."""
    parser = commands.add_parser(
        "info",
        help="show queues, counts and workers",
        description="Show the queues of a storage: how many jobs are in which state, whether the queue is paused,\n"
        "and which workers serve it with how many jobs in hand. Changes nothing.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("queue", nargs="?", help="only this queue")
    add_url(parser, "the storage to look at")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print what the storage holds."""
    url = find_url(args.url)
    if is_memory(url):
        raise UsageError("a memory:// storage lives inside its own process: no other process can look at it")
    directory = file_directory(url)
    if directory is not None and not (directory / "queue.db").exists():  # looking must not create one
        raise CommandError(f"there is no queue in {directory}")
    with open_storage(url) as storage:
        facts = collect(storage, args.queue)
        where = storage.url
    if args.json:
        print(json.dumps({"storage": where, "queues": [asdict(fact) for fact in facts]}, indent=2))
    else:
        print(f"storage {where}\n")
        print(render(facts))
    return EXIT_OK


def collect(storage: Storage, queue: str | None = None) -> list[QueueFacts]:
    """The facts of one queue or of all."""
    names = storage.queues()
    if queue is not None:
        if check_queue_name(queue) not in names:
            raise CommandError(f"no queue {queue!r} on this storage; there are: {', '.join(names) or 'none'}")
        names = [queue]
    return [
        QueueFacts(
            name,
            storage.is_paused(name),
            {state.value: count for state, count in storage.counts(name).items()},
            [WorkerFacts(worker_label(found.key), found.runners, found.processing) for found in storage.workers(name)],
        )
        for name in names
    ]


def render(facts: Sequence[QueueFacts]) -> str:
    """Two tables."""
    if not facts:
        return "no queues yet"
    states = [state.value for state in STORED]
    queues = [["queue", *states, ""]]
    queues += [
        [fact.queue, *(str(fact.counts.get(state, 0)) for state in states), "paused" if fact.is_paused else ""]
        for fact in facts
    ]
    workers = [["worker", "queue", "threads", "processing"]]
    workers += [
        [worker.worker_id, fact.queue, str(worker.threads), str(worker.processing)]
        for fact in facts
        for worker in fact.workers
    ]
    tables = [_table(queues, left={0, len(states) + 1})]
    tables.append(_table(workers, left={0, 1}) if len(workers) > 1 else "no workers")
    return "\n\n".join(tables)


def _table(rows: Sequence[Sequence[str]], left: set[int]) -> str:
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = (
            cell.ljust(width) if index in left else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
