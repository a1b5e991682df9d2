"""Wake-ups between processes on one machine: a bell file per process, watched by watchdog.

A process that has sleepers announces itself with ``<instance>.asleep``, one that has
subscribers with ``<instance>.listening``; a writer rings only announced ones, by writing
``<instance>.ring``. ``.asleep`` is taken back by the first ring that finds nobody asleep. All
of it is a hint: who announces looks once more before it sleeps, and looks by itself from
time to time.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from watchdog.events import FileClosedEvent, FileModifiedEvent, FileSystemEvent, FileSystemEventHandler
from watchdog.observers import Observer

from ...errors import ReliqError
from ...identity import unique_name

log = logging.getLogger("reliq.storage")

#: An announcement untouched for so long is of a process that died.
STALE_SECONDS = 60.0
#: How often the announcement is touched, and what dead processes left is removed.
_TOUCH_SECONDS = 10.0
#: Rings are answered at most once in this time.
_PAUSE_SECONDS = 0.001
#: The coarsest clock that a local file system takes a directory's time from, with a margin.
_STEP_NS = 100_000_000
# A close tells that a ring is complete; where the platform has no such event, any write does.
_EVENT: type[FileSystemEvent] = FileClosedEvent if sys.platform == "linux" else FileModifiedEvent
# Nor need anything be written for a close to tell.
_RING = b"" if sys.platform == "linux" else b"\n"


class _SharedObserver:
    """The process's one Observer (three threads, one inotify instance), counted by its users."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._observer: Any = None
        self._users = 0

    def watch(self, directory: Path, handler: FileSystemEventHandler) -> Any:
        """Start watching; raises OSError when the platform has no more watches."""
        with self._lock:
            if self._observer is None:
                observer = Observer()
                observer.daemon = True
                observer.start()
                self._observer = observer
            try:
                watch = self._observer.schedule(handler, str(directory), event_filter=[_EVENT])
            except OSError:
                self._stop_unused()
                raise
            self._users += 1
            return watch

    def unwatch(self, watch: Any, handler: FileSystemEventHandler) -> None:
        """Undo one :meth:`watch`; the last one ends the Observer."""
        with self._lock:
            if self._observer is None:
                return
            self._observer.remove_handler_for_watch(handler, watch)
            self._users -= 1
            self._stop_unused()

    def _stop_unused(self) -> None:
        if self._users == 0:
            self._observer.stop()
            self._observer.join()
            self._observer = None


_observer = _SharedObserver()


class Bell(FileSystemEventHandler):
    """The bell of one storage in this process.

    ``answer()`` runs on the bell's thread after a ring; ``is_needed()`` tells whether anybody
    of this process sleeps.
    """

    def __init__(self, directory: Path, answer: Callable[[], None], is_needed: Callable[[], bool]) -> None:
        self._directory = directory
        self._answer = answer
        self._is_needed = is_needed
        self._condition = threading.Condition()
        self._path = str(directory)
        self._seen: tuple[int, frozenset[str], frozenset[str]] = (-1, frozenset(), frozenset())
        self._instance = f"{os.getpid()}-{unique_name(8)}"
        self._ring_path = str(directory / f"{self._instance}.ring")
        self._asleep_path = str(directory / f"{self._instance}.asleep")
        self._listening_path = str(directory / f"{self._instance}.listening")
        self._is_announced = False
        self._is_listening = False
        self._is_rung = False
        self._is_closed = False
        self._thread: threading.Thread | None = None
        self._watch: Any = None

    @property
    def is_announced(self) -> bool:
        """Whether other processes ring this one for work, due jobs and ends."""
        return self._is_announced

    def announce(self) -> bool:
        """Ask other processes for rings; true when that is news, so that the caller must look again."""
        with self._condition:
            if self._is_announced or self._is_closed:
                return False
            self._start()
            self._is_announced = True
            self._touch()
            return True

    def listen(self, is_listening: bool) -> None:
        """Ask for a ring after every change, or no longer."""
        with self._condition:
            if self._is_closed or self._is_listening is is_listening:
                return
            self._start()
            self._is_listening = is_listening
            if is_listening:
                self._touch()
                self._condition.notify()
            else:
                _remove(self._listening_path)

    def ring_others(self, concerns_sleepers: bool) -> None:
        """Ring the other processes that listen, and those that sleep if it concerns them."""
        try:
            listening, asleep = self._announced()
            for instance in listening | asleep if concerns_sleepers else listening:
                _write(f"{self._path}/{instance}.ring", _RING)
        except OSError as error:
            # Sleepers look by themselves; the directory comes back with the next announcement.
            log.debug("a bell could not be rung: %s", error)

    def _announced(self) -> tuple[frozenset[str], frozenset[str]]:
        """The other processes that listen, and those that sleep."""
        changed = os.stat(self._path).st_mtime_ns
        seen, listening, asleep = self._seen
        if changed == seen:
            return listening, asleep
        looked = time.time_ns()
        with os.scandir(self._path) as entries:
            names = [entry.name.partition(".") for entry in entries]
        listening, asleep = (
            frozenset(name for name, _, kind in names if kind == wanted and name != self._instance)
            for wanted in ("listening", "asleep")
        )
        # The directory's time moves in steps of some ms: only an old one says that nothing came since.
        self._seen = (changed if abs(looked - changed) > _STEP_NS else -1, listening, asleep)
        return listening, asleep

    def close(self) -> None:
        """Take the announcement back and end the thread. Idempotent."""
        with self._condition:
            self._is_closed = True
            self._condition.notify()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        if self._watch is not None:
            _observer.unwatch(self._watch, self)
            self._watch = None
        for path in (self._asleep_path, self._listening_path, self._ring_path):
            _remove(path)

    def on_any_event(self, event: FileSystemEvent) -> None:
        """Called by watchdog for each event in the directory, of whichever process."""
        if event.src_path == self._ring_path:
            with self._condition:
                self._is_rung = True
                self._condition.notify()

    def _start(self) -> None:
        if self._thread is None:
            try:
                self._watch = _observer.watch(self._directory, self)
            except OSError as error:
                log.warning(
                    "no file watch could be had for %s (%s): its wake-ups from other processes come by polling. "
                    "On Linux raise fs.inotify.max_user_instances and max_user_watches", self._directory, error,
                )  # fmt: skip
            self._thread = threading.Thread(target=self._run, name="reliq-bell", daemon=True)
            self._thread.start()

    def _touch(self) -> None:
        try:
            if self._is_announced:
                _write(self._asleep_path)
            if self._is_listening:
                _write(self._listening_path)
        except OSError as error:
            log.debug("the announcement could not be written: %s", error)

    def _run(self) -> None:
        touched = time.monotonic()
        while True:
            with self._condition:
                if not self._is_rung and not self._is_closed:
                    is_shown = self._is_announced or self._is_listening
                    self._condition.wait(_TOUCH_SECONDS if is_shown else None)
                if self._is_closed:
                    return
                is_rung, self._is_rung = self._is_rung, False
                if is_rung and self._is_announced:
                    # A new sleeper counts itself, then asks whether it is announced. Withdrawn before the count
                    # is read: it is either counted, or it sees that and announces itself after this.
                    self._is_announced = False
                    if self._is_needed():
                        self._is_announced = True
                    else:
                        _remove(self._asleep_path)
            if is_rung:
                try:
                    self._answer()
                except ReliqError as error:
                    log.warning("a bell could not be answered: %s", error)
                time.sleep(_PAUSE_SECONDS)
            if time.monotonic() - touched >= _TOUCH_SECONDS:
                touched = time.monotonic()
                self._tidy()

    def _tidy(self) -> None:
        """Show that this process lives, and remove what dead ones left."""
        with self._condition:
            if not self._is_closed:
                self._touch()
        oldest = time.time() - STALE_SECONDS
        with contextlib.suppress(OSError):  # nobody rang yet
            os.utime(self._ring_path)  # a ring that writes nothing leaves it as old as it was
        try:
            for entry in os.scandir(self._directory):
                if entry.stat().st_mtime < oldest and entry.name.partition(".")[0] != self._instance:
                    _remove(entry.path)
        except OSError:
            return  # somebody else removed it first


def reset_after_fork() -> None:
    """In a forked child: the Observer's threads are the parent's."""
    global _observer
    _observer = _SharedObserver()


def _write(path: str, data: bytes = b"\n") -> None:
    # Never cut: ext4 sends a file that was cut and written to the disk when it is closed, and whoever
    # rings would wait for that (0.5 ms and more).
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        if data:
            os.write(descriptor, data)
    finally:
        os.close(descriptor)


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        return
