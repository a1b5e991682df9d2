"""Watches the source files of an application that this process has imported."""

from __future__ import annotations

import contextlib
import sys
import sysconfig
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from .common import UsageError

_KINDS = frozenset({"created", "modified", "closed", "moved", "deleted"})


def code_directories() -> list[Path]:
    """The directories of every imported module that is neither installed nor of Python itself."""
    installed = {Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    installed.add(Path(__file__).resolve().parents[1])
    found: set[Path] = set()
    for module in list(sys.modules.values()):
        name = getattr(module, "__file__", None)
        if not name or not name.endswith(".py"):
            continue
        directory = Path(name).resolve().parent
        if not any(directory == path or path in directory.parents for path in installed) and directory.is_dir():
            found.add(directory)
    return sorted(found)


@contextlib.contextmanager
def watch_code(changed: Callable[[], None]) -> Iterator[None]:
    """Call ``changed`` whenever a .py file beside the application's modules comes, changes or goes."""
    # Loaded for this option only: a worker on Redis needs no file events.
    events: Any = import_module("watchdog.events")
    observers: Any = import_module("watchdog.observers")

    def dispatch(event: Any) -> None:
        names = (event.src_path, getattr(event, "dest_path", ""))
        if event.event_type in _KINDS and any(str(name).endswith(".py") for name in names):
            changed()

    handler = events.FileSystemEventHandler()
    handler.dispatch = dispatch
    observer = observers.Observer()
    observer.daemon = True
    try:
        observer.start()
        for directory in code_directories():
            observer.schedule(handler, str(directory))
    except OSError as error:  # no more inotify instances or watches
        if observer.is_alive():
            observer.stop()
            observer.join()
        raise UsageError(f"--reload cannot watch the code: {error}; `reliq doctor` shows the limits") from error
    try:
        yield
    finally:
        observer.stop()
        observer.join()
