"""What is on the disk after power loss, at any moment, is a whole store with everything that was acknowledged.

A shim around the C library's calls writes down what processes write, name and sync in a store's directory; the
processes add what the storage acknowledged to the same file, so that all of it is in one order. Replaying it up to
a cut gives the disk that power loss there may leave: what was synced is there, of everything else
nothing, some, or torn pieces of 512 bytes. The disk is strict: a file whose directory was not synced has no name.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from reliq.errors import ReliqError
from reliq.lifecycle import State
from reliq.storage.sql.check import check
from reliq.storage.sql.file import FileStorage

from .file_programs import ACKNOWLEDGED, QUEUE, TRACE_HEADER, FileProgram, message_of

#: How many cuts are tried; RELIQ_FAULT_CUTS=0 is all of them.
CUTS = int(os.environ.get("RELIQ_FAULT_CUTS", "200"))
SECTOR = 512

WRITE, TRUNCATE, SYNC, SYNCED, CREATE, RENAME, UNLINK, MKDIR = range(1, 9)

SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { WRITE = 1, TRUNCATE, SYNC, SYNCED, CREATE, RENAME, UNLINK, MKDIR };
struct header { uint32_t kind, thread; int64_t offset; uint32_t path, data; } __attribute__((packed));
static const char *root, *trace;
static int out = -1;
#define REAL(type, name, ...) \
    static type (*real)(__VA_ARGS__); \
    if (!real) real = (type (*)(__VA_ARGS__)) dlsym(RTLD_NEXT, name)

__attribute__((constructor)) static void begin(void) {
    root = getenv("RELIQ_TRACE_ROOT");
    trace = getenv("RELIQ_TRACE");
    if (trace) out = syscall(SYS_openat, AT_FDCWD, trace, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
}

/* One write to a file in append mode: records of all threads and processes are whole, and in one order. */
static void put(int kind, int64_t offset, const char *path, const void *data, size_t size) {
    int error = errno;
    struct header head = { kind, syscall(SYS_gettid), offset, strlen(path), size };
    struct iovec parts[] = { { &head, sizeof head }, { (void *) path, head.path }, { (void *) data, size } };
    if (writev(out, parts, 3) != (ssize_t) (sizeof head + head.path + size)) abort();
    errno = error;
}

static int watched(const char *path) { return out >= 0 && root && !strncmp(path, root, strlen(root)); }

static int named(int fd, char *path) {
    char link[64];
    if (out < 0 || fd == out) return 0;
    int error = errno;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, 4095);
    errno = error;
    if (size <= 0) return 0;
    path[size] = 0;
    return watched(path);
}

static ssize_t wrote(int fd, const void *data, ssize_t done, int64_t offset) {
    char path[4096];
    if (done > 0 && named(fd, path)) put(WRITE, offset, path, data, done);
    return done;
}
ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    REAL(ssize_t, "pwrite", int, const void *, size_t, off_t);
    return wrote(fd, data, real(fd, data, size, at), at);
}
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    REAL(ssize_t, "pwrite64", int, const void *, size_t, off64_t);
    return wrote(fd, data, real(fd, data, size, at), at);
}
ssize_t write(int fd, const void *data, size_t size) {
    REAL(ssize_t, "write", int, const void *, size_t);
    ssize_t done = real(fd, data, size);
    char path[4096];
    if (done > 0 && named(fd, path)) put(WRITE, lseek(fd, 0, SEEK_CUR) - done, path, data, done);
    return done;
}
static int cut(int fd, int failed, int64_t size) {
    char path[4096];
    if (!failed && named(fd, path)) put(TRUNCATE, size, path, "", 0);
    return failed;
}
int ftruncate(int fd, off_t size) { REAL(int, "ftruncate", int, off_t); return cut(fd, real(fd, size), size); }
int ftruncate64(int fd, off64_t size) { REAL(int, "ftruncate64", int, off64_t); return cut(fd, real(fd, size), size); }

static int synced(int fd, int (*real)(int)) {
    char path[4096];
    int is_watched = named(fd, path);
    if (is_watched) put(SYNC, 0, path, "", 0);
    int failed = real(fd);
    if (is_watched && !failed) put(SYNCED, 0, path, "", 0);
    return failed;
}
int fsync(int fd) { REAL(int, "fsync", int); return synced(fd, real); }
int fdatasync(int fd) { REAL(int, "fdatasync", int); return synced(fd, real); }

static int opened(int fd, int flags, int existed) {
    char path[4096];
    if (fd < 0 || !named(fd, path)) return fd;
    if ((flags & O_CREAT) && !existed) put(CREATE, 0, path, "", 0);
    else if (flags & O_TRUNC) put(TRUNCATE, 0, path, "", 0);
    return fd;
}
int open(const char *path, int flags, ...) {
    int mode = 0;
    if (flags & O_CREAT) { va_list rest; va_start(rest, flags); mode = va_arg(rest, int); va_end(rest); }
    int existed = !(flags & O_CREAT) || !syscall(SYS_faccessat, AT_FDCWD, path, F_OK);
    REAL(int, "open", const char *, int, ...);
    return opened(real(path, flags, mode), flags, existed);
}
int open64(const char *path, int flags, ...) {
    int mode = 0;
    if (flags & O_CREAT) { va_list rest; va_start(rest, flags); mode = va_arg(rest, int); va_end(rest); }
    int existed = !(flags & O_CREAT) || !syscall(SYS_faccessat, AT_FDCWD, path, F_OK);
    REAL(int, "open64", const char *, int, ...);
    return opened(real(path, flags, mode), flags, existed);
}
int unlink(const char *path) {
    REAL(int, "unlink", const char *);
    int failed = real(path);
    if (!failed && watched(path)) put(UNLINK, 0, path, "", 0);
    return failed;
}
int rename(const char *from, const char *to) {
    REAL(int, "rename", const char *, const char *);
    int failed = real(from, to);
    if (!failed && watched(from)) put(RENAME, 0, from, to, strlen(to));
    return failed;
}
int mkdir(const char *path, mode_t mode) {
    REAL(int, "mkdir", const char *, mode_t);
    int failed = real(path, mode);
    if (!failed && watched(path)) put(MKDIR, 0, path, "", 0);
    return failed;
}
"""


@dataclass(frozen=True, slots=True)
class Event:
    """One record of a trace."""

    kind: int
    thread: int
    offset: int
    path: str
    data: bytes


def read_trace(path: Path) -> list[Event]:
    text = path.read_bytes()
    at, events = 0, []
    while at < len(text):
        kind, thread, offset, path_size, data_size = TRACE_HEADER.unpack_from(text, at)
        at += TRACE_HEADER.size
        name, data = text[at : at + path_size].decode(), text[at + path_size : at + path_size + data_size]
        at += path_size + data_size
        events.append(Event(kind, thread, offset, name, data))
    return events


@dataclass
class File:
    """What is safe, and what was written since and is not: (number, offset or new size, data or None for a cut)."""

    content: bytearray = field(default_factory=bytearray)
    pending: list[tuple[int, int, bytes | None]] = field(default_factory=list)

    def sync(self, before: int) -> None:
        safe = [each for each in self.pending if each[0] < before]
        self.pending = [each for each in self.pending if each[0] >= before]
        for _, offset, data in safe:
            _apply(self.content, offset, data)

    def survivor(self, loss: str, chance: random.Random) -> bytearray:
        """The content after power loss. ``loss``: ``all`` that is pending, ``none``, ``some`` of it, or ``torn``."""
        content = bytearray(self.content)
        for _, offset, data in self.pending:
            if loss == "all" or (loss in ("some", "torn") and chance.random() < 0.5):
                continue
            if loss != "torn" or data is None:
                _apply(content, offset, data)
                continue
            first = -offset % SECTOR  # sectors are of the file, not of the write
            for start in (0, *range(first or SECTOR, len(data), SECTOR)):
                if chance.random() < 0.5:
                    _apply(content, offset + start, data[start : (first or SECTOR) if start == 0 else start + SECTOR])
        return content


def _apply(content: bytearray, offset: int, data: bytes | None) -> None:
    size = offset + len(data or b"")
    if len(content) < size:
        content.extend(bytes(size - len(content)))
    if data is None:
        del content[offset:]
    else:
        content[offset:size] = data


class Disk:
    """A directory as events change it, and as power loss would leave it."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._number = 0
        self._names: dict[str, File] = {}
        self._safe_names: dict[str, File] = {}
        self._syncing: dict[tuple[int, str], tuple[int, dict[str, File]]] = {}
        #: What storages acknowledged so far: the last fact of each id.
        self.facts: dict[str, str] = {}
        #: Directories above whose entry for the next one was made and not synced.
        self.unsafe_parents: set[str] = set()

    def apply(self, event: Event) -> None:
        self._number += 1
        if event.kind == ACKNOWLEDGED:
            self.facts.update((id, fact) for fact, id in json.loads(event.data))
        elif event.kind == MKDIR:
            self.unsafe_parents.add(os.path.dirname(event.path))
        elif event.kind == SYNC:
            self._syncing[event.thread, event.path] = self._number, dict(self._names)
        elif event.kind == SYNCED:
            # What was written while the sync was under way may not be covered by it.
            before, names = self._syncing.pop((event.thread, event.path))
            self.unsafe_parents.discard(event.path)
            if event.path == self._root:
                self._safe_names = names
            elif (name := self._name(event.path)) and (file := names.get(name)):
                file.sync(before)
        elif name := self._name(event.path):
            self._change(event, name)

    def _change(self, event: Event, name: str) -> None:
        if event.kind == CREATE:
            self._names[name] = File()
        elif event.kind == RENAME:
            self._names[str(self._name(event.data.decode()))] = self._names.pop(name)
        elif event.kind == UNLINK:
            del self._names[name]
        else:
            data = event.data if event.kind == WRITE else None
            self._names[name].pending.append((self._number, event.offset, data))

    def _name(self, path: str) -> str | None:
        """The name of a file that SQLite has; the lock and the bell may be lost."""
        directory, name = os.path.split(path.removesuffix(" (deleted)"))
        return name if directory == self._root and name.startswith("queue.db") else None

    def leave(self, directory: Path, loss: str, chance: random.Random) -> None:
        """Make ``directory`` what power loss leaves."""
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(mode=0o700)
        names = self._names if loss == "none" or (loss != "all" and chance.random() < 0.5) else self._safe_names
        for name, file in names.items():
            path = directory / name
            path.write_bytes(file.survivor(loss, chance))
            path.chmod(0o600)
        if loss == "torn" and "queue.db" in names:
            # Nobody syncs the shared memory: anything may be in it.
            (directory / "queue.db-shm").write_bytes(chance.randbytes(32_768))


class Lost(AssertionError):
    """Something acknowledged is gone, or something is there that never was."""


def look(directory: Path, disk: Disk) -> None:
    """Open what is left and compare it with what was acknowledged."""
    storage = FileStorage(directory)
    try:
        ids = list(disk.facts)
        snapshots = storage.read(QUEUE, ids)
        present = sum(storage.counts(QUEUE).values())
        listed = [id for state in (State.QUEUED, State.PROCESSING, State.COMPLETED, State.FAILED, State.FAILING)
                  for id in storage.list_ids(QUEUE, state, None, 1_000_000)[0]]  # fmt: skip
        others = storage.read(QUEUE, sorted(set(listed).difference(ids)))
    except ReliqError as error:
        raise Lost(f"the store cannot be used: {error}") from error
    finally:
        storage.close()
    for snapshot in snapshots:
        fact = disk.facts[snapshot.id]
        if snapshot.state is State.ABSENT or (fact in ("completed", "failed") and snapshot.state != fact):
            raise Lost(f"{snapshot.id} was acknowledged as {fact} and is {snapshot.state}")
    for snapshot in (*snapshots, *others):
        if snapshot.message != message_of(snapshot.id):
            raise Lost(f"{snapshot.id} is torn: its message is not what was given")
        if snapshot.state is State.COMPLETED and snapshot.result != message_of(f"result of {snapshot.id}"):
            raise Lost(f"{snapshot.id} is completed without its result")
    if present != len(listed):
        raise Lost(f"{present} jobs are counted, {len(listed)} listed")
    if disk.facts and not (report := check(directory)).is_sound:
        raise Lost(f"the store is damaged: {report.problems}")


@dataclass(frozen=True, slots=True)
class Recording:
    """A trace, and the directory that it is about."""

    events: list[Event]
    root: str

    def cuts(self, number: int, chance: random.Random) -> set[int]:
        """Events after which the power goes: behind and before each sync, and some between; at most ``number``."""
        synced = [n for n, event in enumerate(self.events) if event.kind == SYNCED]
        cuts = {*synced, *(n - 1 for n in synced), len(self.events) - 1}
        cuts |= {n for n in range(len(self.events)) if chance.random() < 0.1}
        if number and len(cuts) > number:
            # The first ones make the store.
            cuts = {*sorted(cuts)[:30], *chance.sample(sorted(cuts), number - 30)}
        return cuts

    def replay(self, directory: Path, number: int = CUTS) -> dict[str, int]:
        """Cut, look, go on; raises :class:`Lost`. How much was tried."""
        seed = int.from_bytes(os.urandom(4))
        chance = random.Random(seed)
        cuts = self.cuts(number, chance)
        disk = Disk(self.root)
        tried = 0
        for n, event in enumerate(self.events):
            disk.apply(event)
            if n not in cuts:
                continue
            for loss in ("all", chance.choice(["none", "some", "torn", "torn"])):
                disk.leave(directory, loss, chance)
                tried += 1
                try:
                    look(directory, disk)
                except Lost as error:
                    raise Lost(
                        f"cut behind event {n} of {len(self.events)}, loss {loss}, seed {seed}: {error}"
                    ) from error
        return {"cuts": len(cuts), "disks": tried, "facts": len(disk.facts)}


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shim as a library."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if sys.platform != "linux" or compiler is None:
        pytest.skip("recording writes needs Linux and a C compiler")
    source = tmp_path_factory.mktemp("shim") / "shim.c"
    source.write_text(SHIM)
    library = source.with_suffix(".so")
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return library


def record(shim: Path, tmp_path: Path, rounds: int = 60, **config: Any) -> Recording:
    """Two processes of two threads at work on a new store."""
    top = Path(os.path.realpath(tmp_path))
    root, trace = top / "disk" / "queue", top / "trace"
    root.parent.mkdir()
    trace.touch()
    environment = {"LD_PRELOAD": str(shim), "RELIQ_TRACE": str(trace), "RELIQ_TRACE_ROOT": str(root.parent)}
    config = {"directory": str(root), "threads": 2, "rounds": rounds, "checkpoint_pages": 60, **config}
    programs = [FileProgram("recorded", environment, prefix=prefix, **config) for prefix in "ab"]
    try:
        for program in programs:
            assert program.output() == []
    finally:
        for program in programs:
            program.__exit__()
    events = read_trace(trace)
    kinds = {event.kind for event in events}
    assert {WRITE, SYNC, SYNCED, CREATE, RENAME, MKDIR, ACKNOWLEDGED} <= kinds, f"the shim saw only {kinds}"
    return Recording(events, str(root))


def test_power_loss_at_any_moment_loses_nothing_that_was_acknowledged(shim: Path, tmp_path: Path) -> None:
    recording = record(shim, tmp_path)
    syncs = sum(event.kind == SYNCED for event in recording.events)
    checkpoints = sum(event.kind == SYNCED and event.path.endswith("queue.db") for event in recording.events)
    found = recording.replay(tmp_path / "left")
    print(f"{len(recording.events)} events, {syncs} syncs, {checkpoints} checkpoints, {found}")
    assert checkpoints > 3
    assert found["facts"] > 200


def test_the_directory_of_a_store_is_made_durable_with_it(shim: Path, tmp_path: Path) -> None:
    """A directory that was made and has no safe entry in the one above goes with everything in it."""
    recording = record(shim, tmp_path, rounds=1)
    disk = Disk(recording.root)
    for event in recording.events:
        disk.apply(event)
        if disk.facts:
            assert os.path.dirname(recording.root) not in disk.unsafe_parents, (
                "acknowledged before the directory was safe"
            )
            return


@pytest.mark.parametrize(
    "how", [{"durability": "os"}, {"synchronous": "OFF"}], ids=["durability_os", "synchronous_off"]
)
def test_control_without_syncs_power_loss_loses_jobs(shim: Path, tmp_path: Path, how: dict[str, Any]) -> None:
    recording = record(shim, tmp_path, **how)
    with pytest.raises(Lost):
        recording.replay(tmp_path / "left", 0)


@pytest.mark.parametrize(("loss", "expected"), [("all", b""), ("none", b"ab" * 600)])
def test_the_disk_keeps_what_was_synced_and_may_lose_the_rest(tmp_path: Path, loss: str, expected: bytes) -> None:
    """The instrument itself: without a sync of the directory there is no name, without one of the file no content."""
    disk, chance, path = Disk("/r"), random.Random(1), "/r/queue.db"

    def left() -> bytes | None:
        disk.leave(tmp_path / "left", loss, chance)
        file = tmp_path / "left" / "queue.db"
        return file.read_bytes() if file.exists() else None

    disk.apply(Event(CREATE, 1, 0, path, b""))
    disk.apply(Event(WRITE, 1, 0, path, b"ab" * 600))
    assert left() == (expected or None)
    for kind in (SYNC, SYNCED):
        disk.apply(Event(kind, 1, 0, "/r", b""))
    assert left() == expected
    disk.apply(Event(SYNC, 1, 0, path, b""))
    disk.apply(Event(WRITE, 2, 0, path, b"late"))  # the sync that is under way does not cover it
    disk.apply(Event(SYNCED, 1, 0, path, b""))
    content = left()
    assert content is not None
    assert content[4:] == (b"ab" * 600)[4:]
    assert content[:4] == (b"abab" if loss == "all" else b"late")


def test_a_torn_write_is_made_of_whole_sectors() -> None:
    file = File(bytearray(2048), [(1, 256, b"x" * 1024)])
    shapes = {bytes(file.survivor("torn", random.Random(n))) for n in range(50)}
    edges = (256, 512, 1024, 1280)
    assert len(shapes) > 4
    for shape in shapes:
        assert all(len(set(shape[a:b])) == 1 for a, b in itertools.pairwise(edges))
