"""What must hold around a store of files: its file system, its space, inotify, its database."""

from __future__ import annotations

import os
import shutil
import sqlite3
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from ..errors import StorageError
from .findings import Finding, ok, problem, warning

_MIB = 1 << 20
#: Below these a store is about to be full; SQLite needs room for its log, too.
_LITTLE_SPACE, _NO_SPACE = 1024 * _MIB, 100 * _MIB
_PROC = Path("/proc")
#: Whoever has so large a part of its inotify instances in use runs out of them soon.
_MUCH = 0.8
_VOLATILE = frozenset({"tmpfs", "ramfs"})


def examine(directory: Path, tell: Callable[[str], None], *, audits: bool) -> Iterator[Finding]:
    """Everything around and in the store in ``directory``."""
    yield _file_system(directory)
    yield from _space(directory)
    yield _rights(directory)
    yield from _inotify()
    if audits:
        yield from _check(directory, tell)


def _file_system(directory: Path) -> Finding:
    from ..storage.sql.places import NETWORK, kind_of

    check = "file system"
    try:
        mounts = (_PROC / "self/mountinfo").read_text("utf-8", "surrogateescape")
    except OSError:
        return ok(check, f"not known on {sys.platform}: it must be a local one")
    kind = kind_of(os.path.realpath(directory), mounts)
    if kind in NETWORK:
        return problem(check, f"{kind}, a network file system", "SQLite's locks do not hold there: use a local disk")
    if kind in _VOLATILE:
        return warning(check, f"{kind}: in memory", "a restart of the machine loses every job; use a disk")
    if kind == "overlay":
        return warning(
            check, "overlay: likely a layer of a container", "it goes with the container; mount a volume there"
        )
    return ok(check, kind or "unknown")


def _space(directory: Path) -> Iterator[Finding]:
    check = "free space"
    usage = shutil.disk_usage(directory)
    text = f"{usage.free // _MIB} of {usage.total // _MIB} MiB free"
    advice = "make room: without space enqueue and settle are refused"
    if usage.free < _NO_SPACE:
        yield problem(check, text, advice)
    elif usage.free < _LITTLE_SPACE:
        yield warning(check, text, advice)
    else:
        yield ok(check, text)
    stats = os.statvfs(directory)
    if stats.f_files and stats.f_favail < 1000:
        yield problem("free inodes", f"{stats.f_favail} left", "remove files: new ones cannot be made")


def _rights(directory: Path) -> Finding:
    check = "rights"
    paths = [directory, *(directory / name for name in ("queue.db", "queue.db-wal", "lock", "bell"))]
    # No file is opened and closed here: beside a connection that would drop SQLite's locks.
    refused = [path for path in paths if path.exists() and not os.access(path, os.R_OK | os.W_OK)]
    if refused:
        text = f"this user may not read and write {refused[0]}"
        return problem(check, text, f"every user of the store must: chown or chmod {directory}")
    return ok(check, "read and write")


def _inotify() -> Iterator[Finding]:
    check = "inotify"
    if sys.platform != "linux":
        yield ok(check, f"not used on {sys.platform}")
        return
    limits = {}
    for name in ("max_user_instances", "max_user_watches"):
        try:
            limits[name] = int((_PROC / "sys/fs/inotify" / name).read_text())
        except (OSError, ValueError):
            yield warning(check, f"{name} cannot be read", "without inotify processes notice each other late")
            return
    used = instances_in_use()
    text = f"{used} of {limits['max_user_instances']} instances in use, {limits['max_user_watches']} watches"
    if used >= limits["max_user_instances"] * _MUCH:
        advice = (
            "each process takes one, without it it looks only now and then: sysctl fs.inotify.max_user_instances=1024"
        )
        yield warning(check, text, advice)
    elif limits["max_user_watches"] < 1024:
        yield warning(check, text, "raise it: sysctl fs.inotify.max_user_watches=65536")
    else:
        yield ok(check, text)


def instances_in_use() -> int:
    """How many inotify instances the processes of this user hold, as far as they can be looked into."""
    used = 0
    for process in _PROC.iterdir():
        if not process.name.isdecimal():
            continue
        try:
            if process.stat().st_uid != os.getuid():
                continue
            used += sum(os.readlink(fd) == "anon_inode:inotify" for fd in (process / "fd").iterdir())
        except OSError:  # it ended, or may not be looked into
            continue
    return used


def _check(directory: Path, tell: Callable[[str], None]) -> Iterator[Finding]:
    from ..storage.sql.check import check

    try:
        report = check(directory, tell)
    except StorageError as error:
        yield problem("live data", str(error), "see `reliq check`")
        return
    if report.is_sound:
        yield ok(
            "live data",
            f"{report.jobs} job(s) in {report.queues} queue(s) keep every guarantee (SQLite {sqlite3.sqlite_version})",
        )
        return
    first = report.problems[0]
    yield problem(
        "live data",
        f"{sum(report.counts.values())} problem(s), the first: {first.check}: {first.queue} {first.id!r} {first.text}",
        f"reliq check {directory} names them",
    )
