"""Asking before something goes for good."""

from __future__ import annotations

import argparse
import sys

from ..shown import safe
from .common import CommandError, UsageError


def add_yes(parser: argparse.ArgumentParser) -> None:
    """The ``--yes`` option."""
    parser.add_argument("-y", "--yes", action="store_true", help="do it without asking; needed where nobody can answer")


def confirm(args: argparse.Namespace, what: str) -> None:
    """Return when the user agrees to ``what``.

    Raises CommandError when not, and UsageError where there is neither a terminal to ask on nor ``--yes``.
    """
    if args.yes:
        return
    if not (sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(f"{what} There is no terminal to ask on: say --yes")
    print(f"{safe(what)} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise CommandError("nothing was done")
