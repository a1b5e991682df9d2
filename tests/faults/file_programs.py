"""Programs that fault tests of files run in other processes: ``python -m tests.faults.file_programs NAME CONFIG``.

Also what those tests share: :class:`FileProgram` starts one, :class:`Journal` is the file in which they write
down what was executed and acknowledged.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import logging
import os
import random
import resource
import secrets
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .support import _ROOT, Program

if TYPE_CHECKING:
    from reliq.storage.base import Claimed, NewRecord
    from reliq.storage.sql.file import FileStorage

Config = dict[str, Any]
QUEUE = "q"


class FileProgram(Program):
    """One of the programs below in a process of its own. ``environment`` is added to this process's."""

    def __init__(self, name: str, environment: dict[str, str] | None = None, **config: Any) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.file_programs", name, json.dumps(config)],
            cwd=_ROOT,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._errors: list[str] = []
        self._drain = threading.Thread(target=self._read_errors, daemon=True)
        self._drain.start()

    def stop(self, number: int = signal.SIGSTOP) -> None:
        """Send a signal that does not end it."""
        self._process.send_signal(number)


class Journal:
    """Lines that many processes append, each in one write, so that none is ever split."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, *words: object) -> None:
        self.write_all([words])

    def write_all(self, lines: Iterable[Iterable[object]]) -> None:
        os.write(self._descriptor, "".join(" ".join(map(str, words)) + "\n" for words in lines).encode())

    def close(self) -> None:
        os.close(self._descriptor)

    @staticmethod
    def read(path: Path) -> list[list[str]]:
        """Everything so far, as words; the last line may be half written."""
        return [line.split(" ") for line in path.read_text().split("\n")[:-1]] if path.exists() else []


def say(line: object) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _storage(config: Config) -> FileStorage:
    from reliq.storage.sql.file import FileStorage

    storage = FileStorage(config["directory"], config.get("durability", "fsync"))
    if "fallback_ms" in config:
        storage.fallback_ms = config["fallback_ms"]
    return storage


def message_of(id: str) -> bytes:
    """The payload of a job of the programs that use a storage directly: told by its id, from 100 to 2,000 bytes."""
    digest = hashlib.sha256(id.encode()).digest()
    return (digest * 64)[: 100 + int.from_bytes(digest[:4]) % 1900]


def record(id: str) -> NewRecord:
    from reliq.storage.base import NewRecord

    return NewRecord(id, os.urandom(8), message_of(id), 1_000, 3_600_000, 3_600_000, 3_600_000)


# -- killed workers and producers -----------------------------------------------------


def worker(config: Config) -> None:
    """A pool until SIGTERM, with its journal.

    ``directory journal threads worker_ttl seconds`` say where and how. ``start ID PID RUN`` is written before
    the handler works, ``done ID PID`` after its outcome was acknowledged; the result is RUN. Controls:
    ``no_recovery``: nobody recovers anything; ``no_heartbeat``: leases are never extended.
    """
    from reliq import Job, Queue, WorkerPool
    from reliq.storage.base import Extended, Reaped

    storage = _storage(config)
    if config.get("no_recovery"):
        storage.reap = lambda *args, **more: Reaped([], False, None)  # type: ignore[method-assign]
    if config.get("no_heartbeat"):
        storage.extend = lambda *args, **more: Extended([], [], [])  # type: ignore[method-assign]
    journal = Journal(Path(config["journal"]))
    q = Queue(QUEUE, storage, visibility_timeout=config.get("visibility_timeout", 30.0))

    @q.handler
    def handle(job: Job) -> str:
        run = secrets.token_hex(6)
        journal.write("start", job.id, os.getpid(), run)
        if config.get("seconds"):
            time.sleep(config["seconds"])
        return run

    pool = WorkerPool(q, threads=config.get("threads", 2), worker_ttl=config["worker_ttl"])
    pool.on("completed", lambda event: journal.write("done", event.id, os.getpid()))
    pool.run_forever()
    storage.close()


def producer(config: Config) -> None:
    """Enqueue ``ids`` that the journal does not acknowledge yet, ``rate`` a second; ``ack ID`` follows the answer.

    Control: with ``early`` it goes before it.
    """
    from reliq import Queue

    path = Path(config["journal"])
    acknowledged = {words[1] for words in Journal.read(path) if words[0] == "ack"}
    journal = Journal(path)
    first, last, step = config["ids"]
    todo = [f"job-{n}" for n in range(first, last, step) if f"job-{n}" not in acknowledged]
    q = Queue(QUEUE, _storage(config), max_attempts=1_000)
    began, sent = time.monotonic(), 0
    while todo:
        part, todo = todo[: (size := random.choice([1, 5, 50]))], todo[size:]
        if config.get("early"):
            journal.write_all([("ack", id) for id in part])
        q.enqueue_many((id, {"id": id}) for id in part)
        if not config.get("early"):
            journal.write_all([("ack", id) for id in part])
        sent += len(part)
        time.sleep(max(0.0, began + sent / config["rate"] - time.monotonic()))
    threading.Event().wait()


# -- recorded writes ------------------------------------------------------------------

#: Kind, thread, offset, length of the path, length of the data: as in the shim of the power loss tests.
TRACE_HEADER = struct.Struct("=IIqII")
ACKNOWLEDGED = 9


def recorded(config: Config) -> None:
    """Threads that enqueue, claim and settle; what was acknowledged goes into the file that the shim traces to.

    ``directory prefix threads rounds``; ``checkpoint_pages`` makes checkpoints frequent; ``synchronous`` (a control) is
    set behind the storage's back.
    """
    storage = _storage(config)
    trace = os.open(os.environ["RELIQ_TRACE"], os.O_WRONLY | os.O_APPEND)
    storage._database.run(f"PRAGMA wal_autocheckpoint = {config['checkpoint_pages']}", {})
    if "synchronous" in config:
        storage._database.run(f"PRAGMA synchronous = {config['synchronous']}", {})

    def acknowledge(facts: list[tuple[str, str]]) -> None:
        data = json.dumps(facts).encode()
        os.write(trace, TRACE_HEADER.pack(ACKNOWLEDGED, 0, 0, 0, len(data)) + data)

    errors: list[BaseException] = []
    threads = [
        threading.Thread(
            target=_traffic, args=(storage, f"{config['prefix']}{n}", config["rounds"], acknowledge, errors)
        )
        for n in range(config["threads"])
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    say(json.dumps([repr(error) for error in errors]))
    os._exit(0)  # no last checkpoint: what power loss finds is what the work left


def _traffic(
    storage: FileStorage,
    name: str,
    rounds: int,
    acknowledge: Callable[[list[tuple[str, str]]], None],
    errors: list[BaseException],
) -> None:
    from reliq.lifecycle import State
    from reliq.storage.base import Outcome, Verb, Worker

    chance = random.Random(name)
    me = Worker(name, "0")

    def outcome(job: Claimed) -> Outcome:
        verb = chance.choice([Verb.COMPLETE] * 6 + [Verb.RETRY, Verb.FAIL, Verb.RELEASE])
        return Outcome(job.id, job.nonce, job.token, verb, message_of(f"result of {job.id}"), b"an error")

    try:
        for number in range(rounds):
            ids = [f"{name}-{number}-{n}" for n in range(chance.choice([1, 1, 1, 5, 30]))]
            storage.enqueue(QUEUE, [record(id) for id in ids])
            acknowledge([("accepted", id) for id in ids])
            if chance.random() < 0.6:
                jobs = storage.claim(QUEUE, me, chance.choice([1, 5, 30]), serial=number, lease_ms=600_000).jobs
                outcomes = [outcome(job) for job in jobs]
                ended = storage.settle(QUEUE, me, outcomes) if outcomes else []
                final = [settled for settled in ended if settled.state in (State.COMPLETED, State.FAILED)]
                acknowledge([(str(settled.state), settled.id) for settled in final])
    except BaseException as error:
        errors.append(error)


# -- forks ----------------------------------------------------------------------------


def fork(config: Config) -> None:
    """The parent opens, forks and closes; the child enqueues 100, the first before that, and says what came of it.

    ``control``: ``no_hook``: without the fork hook; ``no_check``: nor the look at the pid that notices it.
    """
    control = config.get("control")
    if control:
        os.register_at_fork = lambda **hooks: None
    storage = _storage(config)
    if control == "no_check":
        storage._file._check_process = lambda: None  # type: ignore[method-assign]
    storage.enqueue(QUEUE, [record("parent")])
    has_closed, gate = os.pipe()
    has_begun, sign = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(gate)
        try:
            if control == "no_check":
                storage = _storage(config)  # a connection of its own beside the inherited one
            storage.enqueue(QUEUE, [record("child-0")])
            os.close(sign)
            os.read(has_closed, 1)  # returns when the parent has closed
            for n in range(1, 100):
                storage.enqueue(QUEUE, [record(f"child-{n}")])
            say(json.dumps("enqueued"))
        except Exception as error:
            say(json.dumps(f"{type(error).__name__}: {error}"))
        os._exit(0)
    os.close(sign)
    os.read(has_begun, 1)
    storage.close()
    os.close(gate)
    os.waitpid(child, 0)


def web_application() -> Callable[[Any, Callable[..., Any]], Iterable[bytes]]:
    """What gunicorn serves: ``/enqueue?ID`` and ``/call?ID`` answer with the pid and what the queue said.

    RELIQ_URL names the queue, which is in use before the fork. Control: RELIQ_TEST_NO_HOOK=1.
    """
    if os.environ.get("RELIQ_TEST_NO_HOOK"):
        os.register_at_fork = lambda **hooks: None
    from reliq import Queue

    q = Queue(QUEUE)
    q.enqueue(f"loading-{os.getpid()}", {})
    waiting = threading.Thread(target=lambda: q.wait(f"loading-{os.getpid()}", timeout=600), daemon=True)
    waiting.start()  # so that a bell and its watch are in use, too

    def application(environ: Any, start_response: Callable[..., Any]) -> Iterable[bytes]:
        id = environ["QUERY_STRING"]
        try:
            answer = q.call(id, {}, timeout=20) if environ["PATH_INFO"] == "/call" else q.enqueue(id, {}).status
        except Exception as error:
            answer = f"{type(error).__name__}: {error}"
        start_response("200 OK", [("Content-Type", "application/json")])
        return [json.dumps([os.getpid(), answer]).encode()]

    return application


# -- full disks -----------------------------------------------------------------------


def fill(config: Config) -> None:
    """Enqueue batches until there is no space, try everything once, make space, go on; prints what happened.

    ``ballast`` is a file whose removal makes space; without it the size of files is limited, and the limit lifted.
    Control: ``torn``: each job of a batch is written for itself.
    """
    from reliq.errors import ReliqError
    from reliq.lifecycle import State
    from reliq.storage.base import Outcome, Verb, Worker

    storage = _storage(config)
    alice = Worker("alice", "0")
    accepted: list[str] = []
    refused: list[list[str]] = []
    errors: list[list[str]] = []

    def attempt(what: str, act: Callable[[], Any]) -> Any:
        try:
            return act()
        except ReliqError as error:
            errors.append([what, type(error).__name__, str(error)])
            return None

    def enqueue(batch: Sequence[NewRecord]) -> bool:
        def act() -> Any:
            if config.get("torn"):
                return [storage.enqueue(QUEUE, [job]) for job in batch]
            return storage.enqueue(QUEUE, batch)

        ids = [job.id for job in batch]
        done = attempt("enqueue", act) is not None
        if done:
            accepted.extend(ids)
        else:
            refused.append(ids)
        return done

    # A control whose first job of a batch is the refused one leaves nothing torn: with many jobs that is unlikely.
    size = 97 if config.get("torn") else 10

    def batch(number: int) -> list[NewRecord]:
        return [record(f"job-{number}-{n}")._replace(message=os.urandom(2_000)) for n in range(size)]

    enqueue(batch(0))
    held = storage.claim(QUEUE, alice, 5, serial=1, lease_ms=600_000).jobs
    if "ballast" not in config:
        limit = max(os.path.getsize(Path(config["directory"]) / name) for name in ("queue.db", "queue.db-wal"))
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit + 500_000, resource.RLIM_INFINITY))
    number = 0
    failed: list[NewRecord] = []
    while not failed:
        number += 1
        assert number < 5_000, "there is space without end"
        jobs = batch(number)
        failed = [] if enqueue(jobs) else jobs
    # It stays full: everything is refused, again and again, and reading goes on.
    for again in range(3):
        enqueue(batch(100_000 + again))
    outcomes = [Outcome(job.id, job.nonce, job.token, Verb.COMPLETE, os.urandom(20_000)) for job in held]
    settled = attempt("settle", lambda: storage.settle(QUEUE, alice, outcomes))
    readable = len(storage.read(QUEUE, accepted))
    found = [sum(job.state is not State.ABSENT for job in storage.read(QUEUE, ids)) for ids in refused]
    if "ballast" in config:
        os.unlink(config["ballast"])
    else:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    resumed = enqueue(batch(200_000))
    repeated = enqueue(failed)  # the same nonces: safe whatever had come of them
    settled = settled or storage.settle(QUEUE, alice, outcomes)
    say(
        json.dumps(
            {
                "accepted": accepted,
                "found": found,  # of each batch that was refused
                "readable": readable,
                "errors": errors,
                "resumed": resumed,
                "repeated": repeated,
                "settled": [each.state for each in settled],
            }
        )
    )
    storage.close()


# -- bursts and idling ----------------------------------------------------------------


def watcher(config: Config) -> None:
    """A pool until SIGTERM; then it writes when each job was accepted and started into ``times``.

    Controls: ``deaf``: it never hears a ring.
    """
    from reliq import Queue, WorkerPool
    from reliq.storage.sql.bell import Bell

    if config.get("deaf"):
        Bell.on_any_event = lambda self, event: None  # type: ignore[method-assign]
    storage = _storage(config)
    q = Queue(QUEUE, storage)
    times: list[tuple[float, float]] = []
    q.handler(lambda job: times.append((job.created_at, time.time())))
    pool = WorkerPool(q, threads=config.get("threads", 4)).start()
    say("ready")
    pool.run_forever()
    Path(config["times"]).write_text(json.dumps(times))
    storage.close()


def hold_lock(config: Config) -> None:
    """Begin a write transaction on the database and never end it."""
    import sqlite3

    connection = sqlite3.connect(Path(config["directory"]) / "queue.db", isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    say("ready")
    threading.Event().wait()


def hold_file_lock(config: Config) -> None:
    """Take a lock file and never give it back."""
    from filelock import FileLock

    lock = FileLock(config["path"])
    with lock:
        say("ready")
        threading.Event().wait()


def as_nobody(config: Config) -> None:
    """Use a directory as a user to whom modes mean something; prints the error."""
    from reliq.errors import ReliqError

    storage, job = _storage(config), record("job")  # imports what that user may not be able to read
    os.setgid(65_534)
    os.setuid(65_534)
    try:
        storage.enqueue(QUEUE, [job])
        say(json.dumps(["accepted", ""]))
    except ReliqError as error:
        say(json.dumps([type(error).__name__, str(error)]))


PROGRAMS: dict[str, Callable[[Config], None]] = {
    "worker": worker, "producer": producer, "recorded": recorded, "fork": fork, "fill": fill, "watcher": watcher,
    "hold_lock": hold_lock, "hold_file_lock": hold_file_lock,
    "as_nobody": as_nobody,
}  # fmt: skip


def main() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # ends with the test run
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    PROGRAMS[sys.argv[1]](json.loads(sys.argv[2]))


if __name__ == "__main__":
    main()
