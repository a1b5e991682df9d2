"""Which queue on which storage a command is about: ``--url``, ``--app``, ``-q`` and the environment, in one place.

What the command line says comes before the environment, and an application before a URL: its queues know how they
serialise payloads and which options their jobs have.
"""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Iterator, Sequence

from ..queue import Queue
from ..storage import registry
from ..storage.base import Storage
from ..validate import check_queue_name
from .apps import load_queues
from .common import CommandError, UsageError, file_directory, is_memory


def add_place(parser: argparse.ArgumentParser) -> None:
    """The options that say where queues are."""
    group = parser.add_argument_group("where")
    group.add_argument("--url", metavar="URL", help="the storage (default: the environment variable RELIQ_URL)")
    group.add_argument(
        "--app", metavar="MODULE:ATTRIBUTE",
        help="the application's queues, with their options and serdes (default: RELIQ_APP)",
    )  # fmt: skip


def add_queue(parser: argparse.ArgumentParser, *, is_positional: bool = True) -> None:
    """The queue, optional where there is only one; as an argument and as ``-q``."""
    if is_positional:
        parser.add_argument("queue", nargs="?", metavar="QUEUE", help="the queue (default: the only one there is)")
    parser.add_argument("-q", "--queue", dest="named_queue", metavar="QUEUE", help="the queue, as an option")


def queue_name(args: argparse.Namespace) -> str | None:
    """The queue that the command line names, checked."""
    argument, option = getattr(args, "queue", None), getattr(args, "named_queue", None)
    if argument is not None and option is not None and argument != option:
        raise UsageError(f"two queues were named, {argument!r} and {option!r}")
    name = argument if option is None else option
    return None if name is None else check_queue_name(name)


class Place:
    """The queues within reach of a command."""

    def __init__(self, storages: Sequence[Storage], queues: Sequence[Queue]) -> None:
        self.storages = storages
        #: Those of an application, with their options and serdes; none where a URL said where to look.
        self.own_queues = queues

    def find(self, name: str | None, *, may_be_new: bool = False) -> Queue:
        """The queue of that name, or the only one. ``may_be_new``: nobody needs to have used it before."""
        if name is None:
            return self._only(may_be_new)
        for queue in self.own_queues:
            if queue.name == name:
                return queue
        for storage in self.storages:
            if name in storage.queues():
                return Queue(name, storage)
        if may_be_new and len(self.storages) == 1:
            return Queue(name, self.storages[0])
        names = ", ".join(sorted({queue.name for queue in self.all()}))
        raise CommandError(f"no queue {name!r} on this storage; there are: {names or 'none'}")

    def all(self, name: str | None = None) -> list[Queue]:
        """Every queue, by storage and name; or the one that is named."""
        if name is not None:
            return [self.find(name)]
        found: list[Queue] = []
        for storage in self.storages:
            own = {queue.name: queue for queue in self.own_queues if queue.storage is storage}
            found += [own.get(each) or Queue(each, storage) for each in sorted({*own, *storage.queues()})]
        return found

    def _only(self, may_be_new: bool) -> Queue:
        # Of an application its own queues count, whatever else its storage holds.
        found = list(self.own_queues) or self.all()
        if len(found) == 1:
            return found[0]
        if found:
            raise UsageError(f"which queue? Name it; there are: {', '.join(queue.name for queue in found)}")
        if may_be_new:
            raise UsageError("this storage has no queues yet: name the new one with -q")
        raise CommandError("no queues yet on this storage")


@contextlib.contextmanager
def open_place(args: argparse.Namespace, *, may_create: bool = False, may_be_memory: bool = False) -> Iterator[Place]:
    """The place of a command's arguments, for as long as it runs. ``may_create``: also make a store of files;
    ``may_be_memory``: for a command that needs nothing of what other processes did."""
    app = args.app or (None if args.url else os.environ.get("RELIQ_APP"))
    if app:
        with _app_place(app, args.url) as place:
            _check(place.storages, may_create, may_be_memory)
            yield place
        return
    url = args.url or os.environ.get("RELIQ_URL")
    if not url:
        raise UsageError("no storage: give --url URL or --app MODULE:ATTRIBUTE, or set RELIQ_URL or RELIQ_APP")
    storage = registry.acquire(url)
    try:
        _check([storage], may_create, may_be_memory)
        yield Place([storage], [])
    finally:
        registry.release(url)


@contextlib.contextmanager
def _app_place(app: str, url: str | None) -> Iterator[Place]:
    before = os.environ.get("RELIQ_URL")
    if url:
        os.environ["RELIQ_URL"] = url  # where queues without a URL look
    queues: list[Queue] = []
    try:
        queues = load_queues(app)
        storages = list(dict.fromkeys(queue.storage for queue in queues))
        yield Place(storages, queues)
    finally:
        for queue in queues:
            queue.close()
        if url:
            os.environ.pop("RELIQ_URL")
            if before is not None:
                os.environ["RELIQ_URL"] = before


def _check(storages: Sequence[Storage], may_create: bool, may_be_memory: bool) -> None:
    for storage in storages:
        if is_memory(storage.url) and not may_be_memory:
            raise UsageError("a memory:// storage lives inside its own process: no other process can look at it")
        directory = file_directory(storage.url)
        if directory is not None and not may_create and not (directory / "queue.db").exists():
            raise CommandError(f"there is no queue in {directory}")  # looking must not create one
