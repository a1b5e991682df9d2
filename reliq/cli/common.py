"""What the subcommands share: exit codes, errors, how a command is described."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from argparse import _SubParsersAction

EXIT_OK = 0
#: The storage does not answer, a job failed, a check failed, a worker had to give up.
EXIT_TROUBLE = 1
#: The command line or what it names is wrong: trying again cannot help. argparse uses the same.
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


class UsageError(Exception):
    """The command cannot be carried out as it was given."""


class CommandError(Exception):
    """The command failed for a reason that its text explains."""


def add_command(
    commands: _SubParsersAction[argparse.ArgumentParser],
    name: str,
    run: Callable[[argparse.Namespace], int] | None,
    *,
    help: str,
    description: str,
    epilog: str,
) -> argparse.ArgumentParser:
    """Describe one command; ``help`` is its line in the list of commands, ``epilog`` shows examples.

    ``run`` is None for one that has commands of its own.
    """
    parser = commands.add_parser(
        name, help=help, description=description, epilog=epilog, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    if run is not None:
        parser.set_defaults(run=run)
    return parser


def at_least_one(text: str) -> int:
    """An argparse type: a number of 1 or more."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, got {value}")
    return value


at_least_one.__name__ = "number"  # argparse shows it


def is_memory(url: str) -> bool:
    """Whether the URL names a storage that ends with its process."""
    return url.startswith("memory://")


def file_directory(url: str) -> Path | None:
    """The directory of a ``file://`` URL, None for the others."""
    return Path(unquote(urlsplit(url).path)) if url.startswith("file://") else None
