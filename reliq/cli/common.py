"""What the subcommands share: exit codes, errors, where the storage is."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

from ..storage import registry
from ..storage.base import Storage

EXIT_OK = 0
#: The storage does not answer, a check failed, a worker had to give up.
EXIT_TROUBLE = 1
#: The command line or what it names is wrong: trying again cannot help. argparse uses the same.
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


class UsageError(Exception):
    """The command cannot be carried out as it was given."""


class CommandError(Exception):
    """The command failed for a reason that its text explains."""


def add_url(parser: argparse.ArgumentParser, help: str) -> None:
    """The ``--url`` option."""
    parser.add_argument("--url", metavar="URL", help=f"{help} (default: the environment variable RELIQ_URL)")


def find_url(given: str | None) -> str:
    """The URL of the option or of ``RELIQ_URL``."""
    url = given or os.environ.get("RELIQ_URL")
    if not url:
        raise UsageError("no storage: give --url URL or set RELIQ_URL")
    return url


def is_memory(url: str) -> bool:
    """Whether the URL names a storage that ends with its process."""
    return url.startswith("memory://")


def file_directory(url: str) -> Path | None:
    """The directory of a ``file://`` URL, None for the others."""
    return Path(unquote(urlsplit(url).path)) if url.startswith("file://") else None


@contextlib.contextmanager
def open_storage(url: str) -> Iterator[Storage]:
    """The storage of ``url`` for the length of a command."""
    storage = registry.acquire(url)
    try:
        yield storage
    finally:
        registry.release(url)
