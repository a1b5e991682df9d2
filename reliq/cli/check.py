"""``reliq check``: looks over a store of files for damage and broken rules."""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from ..shown import safe
from .common import EXIT_OK, EXIT_TROUBLE, UsageError, add_command, file_directory
from .output import add_json, write, write_json

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    from ..storage.sql.check import Report

_EPILOG = """\
examples:
  reliq check /var/lib/app/queue
  reliq check file:///var/lib/app/queue --json

exit codes: 0 nothing found, 1 problems found or the store cannot be read, 2 there is no store
Everything is read from one snapshot and nothing is changed, so workers may go on meanwhile.
"""


def add_parser(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Describe the command."""
    parser = add_command(
        commands, "check", run, help="look over a store of files for damage",
        description="Look over the store in a directory: whether its file is whole, and whether every job is in one\n"
        "place, counted, leased, due and ending as it should be.", epilog=_EPILOG,
    )  # fmt: skip
    parser.add_argument("directory", metavar="DIR", help="the directory of the store, or its file:// URL")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Print what was found."""
    # Imported here so that the other commands need no SQLite.
    from ..storage.sql.check import check

    directory = file_directory(args.directory) or Path(args.directory)
    if not (directory / "queue.db").exists():  # looking must not create one
        raise UsageError(f"there is no queue in {directory}")
    began = time.monotonic()
    report = check(
        directory, lambda doing: print(f"{time.monotonic() - began:4.0f} s: {doing} ...", file=sys.stderr, flush=True)
    )
    if args.json:
        write_json({**asdict(report), "is_sound": report.is_sound})
    else:
        write(safe(render(report), lines=True))
    return EXIT_OK if report.is_sound else EXIT_TROUBLE


def render(report: Report) -> str:
    """For people."""
    lines = []
    for problem in report.problems:
        where = f"{problem.queue}: " if problem.queue else ""
        lines.append(f"{problem.check}: {where}{f'{problem.id!r} ' if problem.id else ''}{problem.text}")
    hidden = sum(report.counts.values()) - len(report.problems)
    if hidden:
        lines.append(f"... and {hidden} more")
    found = f"{sum(report.counts.values())} problems" if report.counts else "nothing wrong"
    lines.append(f"{report.directory}: {report.jobs} jobs in {report.queues} queues, {found}")
    return "\n".join(lines)
