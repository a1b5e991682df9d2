"""``reliq doctor``: looks over a storage, its surroundings and its live data, and says what to do."""

from __future__ import annotations

import argparse
import os
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from ..errors import ReliqError, StorageError
from ..shown import safe
from ..storage import registry
from ..storage.base import Storage
from .audit import audit, look_after
from .common import EXIT_OK, EXIT_TROUBLE, add_command, at_least_one, file_directory
from .findings import Finding, Level, problem, warning
from .output import add_json, progress, write, write_json
from .targets import Place, add_place, add_queue, open_place, queue_name

if TYPE_CHECKING:
    from argparse import _SubParsersAction

_EPILOG = """\
examples:
  reliq doctor --url redis://localhost:6379/0
  reliq doctor --url file:///var/lib/app/queue
  reliq doctor --app app.jobs:queues --no-audit     the surroundings only
  reliq doctor --json | jq 'select(.level != "ok")'

Each finding is ok, a warning (it works, and may hurt) or a problem (jobs are or will be lost, or commands fail), with
what to do. Nothing is changed, and workers may go on meanwhile.
exit codes: 0 no problems, 1 problems, or a storage that does not answer, 2 wrong usage
"""


def add_parser(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Describe the command."""
    parser = add_command(
        commands, "doctor", run, help="look over a storage: settings, rights, space, live data",
        description="Look over a storage. A server: version, eviction, persistence, replication, rights, clock.\n"
        "Files: the file system, space, inotify, the database. And whether the live data keeps\n"
        "what is promised.", epilog=_EPILOG,
    )  # fmt: skip
    add_queue(parser)
    parser.add_argument("--no-audit", action="store_true", help="leave the live data alone")
    parser.add_argument(
        "--audit-limit", type=at_least_one, default=100_000, metavar="N",
        help="read at most so many jobs of each state (default: 100000)",
    )  # fmt: skip
    add_place(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Print the findings."""
    with open_place(args) as place:
        with progress("looking") as tell:
            found = list(_examine(args, place, tell))
        for storage, finding in found:
            if args.json:
                write_json({"storage": storage.url, **{name: getattr(finding, name) for name in Finding.__slots__}})
            else:
                write(_line(finding))
    counts = Counter(finding.level for _, finding in found)
    if not args.json:
        write(f"\n{counts[Level.OK]} ok, {counts[Level.WARNING]} warning(s), {counts[Level.PROBLEM]} problem(s)")
    return EXIT_TROUBLE if counts[Level.PROBLEM] else EXIT_OK


def _line(finding: Finding) -> str:
    line = f"{finding.level.value.ljust(7)}  {finding.check}: {safe(finding.text)}"
    return f"{line}\n         -> {safe(finding.advice)}" if finding.advice else line


def _examine(args: argparse.Namespace, place: Place, tell: Callable[[str], None]) -> Iterator[tuple[Storage, Finding]]:
    for storage in place.storages:
        try:
            for finding in _surroundings(storage, args.url, tell, audits=not args.no_audit):
                yield storage, finding
        except StorageError as error:
            yield storage, problem("storage", str(error), "see whether it runs, and whether the URL is right")
            return
    if args.no_audit:
        return
    for queue in place.all(queue_name(args)):
        try:
            if file_directory(queue.storage.url) is None:  # those of files were checked, from one snapshot
                for finding in audit(queue, tell, args.audit_limit):
                    yield queue.storage, finding
            for finding in look_after(queue):
                yield queue.storage, finding
        except StorageError as error:
            yield queue.storage, problem(f"jobs of {queue.name}", str(error), "see the storage's log")


def _surroundings(storage: Storage, url: str | None, tell: Callable[[str], None], *, audits: bool) -> Iterator[Finding]:
    storage.queues()  # raises the storage's own error when it does not answer
    # Imported here: nobody pays for the storage that is not used.
    directory = file_directory(storage.url)
    if directory is not None:
        from . import doctor_files

        yield from doctor_files.examine(directory, tell, audits=audits)
        return
    from . import doctor_redis

    found = _url_of(storage, url)
    if found is None:
        yield warning(
            "server",
            f"{storage.url} was not looked at: no URL with its password is at hand",
            "give it as RELIQ_URL or --url",
        )
        return
    yield from doctor_redis.examine(found)


def _url_of(storage: Storage, given: str | None) -> str | None:
    """The full URL of a storage, which itself shows none of its password."""
    for url in (given, os.environ.get("RELIQ_URL")):
        if not url:
            continue
        try:
            is_it = registry.acquire(url) is storage
        except ReliqError:
            continue
        registry.release(url)
        if is_it:
            return url
    return storage.url if "://" in storage.url and "***@" not in storage.url else None
