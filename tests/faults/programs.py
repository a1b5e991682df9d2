"""Programs that fault tests run in processes of their own: ``python -m tests.faults.programs NAME CONFIG``."""

from __future__ import annotations

import contextlib
import ctypes
import json
import logging
import os
import random
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from reliq import Job, Queue, Reaper, Reject, WorkerPool
from reliq.storage.base import Reaped
from reliq.storage.redis.connection import DirectLink
from reliq.storage.redis.storage import RedisStorage

from .support import mutate

Config = dict[str, Any]


def worker(config: Config) -> None:
    """A pool until SIGTERM.

    ``url prefix queue log`` say where; ``threads prefetch worker_ttl worker_id visibility_timeout reaper`` as
    in the API; ``reaper_interval`` runs a reaper of its own at that pace; ``instance`` replaces the pool's
    random one. What the handler does stands in the payload, see :func:`handle`.
    """
    storage = RedisStorage(config["url"], prefix=config["prefix"])
    q = Queue(config["queue"], storage, visibility_timeout=config.get("visibility_timeout", 30.0))
    log = Path(config["log"])
    q.handler(lambda job: handle(job, log))
    interval = config.get("reaper_interval")
    pool = WorkerPool(
        q,
        threads=config.get("threads", 1),
        prefetch=config.get("prefetch"),
        worker_id=config.get("worker_id"),
        worker_ttl=config.get("worker_ttl", 15.0),
        reaper=config.get("reaper", True) and interval is None,
    )
    if "instance" in config:
        pool.worker = pool.worker._replace(instance=config["instance"])
    with Reaper(q, interval=interval) if interval else contextlib.nullcontext():
        pool.start()
        say("ready")
        pool.run_forever(config.get("stop_timeout", 30.0))
    storage.close()


def handle(job: Job, log: Path) -> Any:
    """Write to the log, then do what the payload says.

    ``die``: SIGKILL to this process; ``hang``: on the first attempt never return; ``gil``: on the first
    attempt hold it for so many seconds; ``seconds``: take so long.
    """
    what = job.payload if isinstance(job.payload, dict) else {}
    record(log, "start", job)
    if what.get("die"):
        os.kill(os.getpid(), signal.SIGKILL)
    if what.get("hang") and job.attempts == 1:
        threading.Event().wait()
    if "gil" in what and job.attempts == 1:
        ctypes.PyDLL(None).sleep(what["gil"])
    if "seconds" in what:
        time.sleep(what["seconds"])
    record(log, "end", job)
    return job.id


def record(log: Path, event: str, job: Job) -> None:
    """One line in one write, so that processes can share the file."""
    entry = {"event": event, "id": job.id, "pid": os.getpid(), "attempt": job.attempts, "at": time.time()}
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(descriptor, json.dumps(entry).encode() + b"\n")
    finally:
        os.close(descriptor)


def crowd(config: Config) -> None:
    """A pool on any storage until SIGTERM, with a journal; see ``crowd.py``, which starts several and reads it.

    ``url prefix`` or ``directory`` and ``journal`` say where, ``threads worker_ttl prefetch`` as in the API. Each run
    takes ``seconds`` [least, most]; that of a persistent job until it is told to end. A share ``failing`` of them
    raises, and so does each whose payload is ``"reject"``, for good. It writes ``start ID PID ATTEMPT RESULT AT``,
    ``end RESULT AT HOW`` and, once the storage has taken the outcome, ``settled ID PID ATTEMPT EVENT``. ``claims``:
    also ``claimed ID AT``, by the storage's clock; ``silent``: nothing at all. Control: ``no_recovery``: it recovers
    and promotes nothing.
    """
    from .crowd import open_storage
    from .file_programs import QUEUE, Journal

    storage = open_storage(config)
    if config.get("no_recovery"):
        storage.reap = lambda *args, **more: Reaped([], False, None)  # type: ignore[method-assign]
    journal, pid = Journal(Path(config["journal"])), os.getpid()
    least, most = config.get("seconds", [0.0, 0.0])
    q = Queue(QUEUE, storage)

    @q.handler
    def run(job: Job) -> str:
        if config.get("silent"):
            if job.payload == "reject":
                raise Reject("as told")
            return ""
        result = secrets.token_hex(6)
        journal.write("start", job.id, pid, job.attempts, result, time.monotonic())
        if config.get("claims"):
            [snapshot] = storage.read(QUEUE, [job.id], payload=False)
            journal.write("claimed", job.id, snapshot.updated_at_ms)
        how = "raised"
        try:
            if job.payload == "persistent":
                job.signal.wait()
            elif most:
                time.sleep(random.uniform(least, most))
            if job.payload == "reject":
                raise Reject("as told")
            if random.random() < config.get("failing", 0.0):
                raise RuntimeError("by chance")
            how = "returned"
        finally:
            journal.write("end", result, time.monotonic(), how)
        return result

    pool = WorkerPool(
        q, threads=config.get("threads", 4), worker_ttl=config["worker_ttl"], prefetch=config.get("prefetch")
    )
    for name in () if config.get("silent") else ("completed", "failing", "failed", "requeued", "cancelled"):
        pool.on(name, lambda event: journal.write("settled", event.id, pid, event.attempts, event.name))
    pool.on("started", lambda event: say("ready"))  # when signals are heard
    pool.run_forever()
    storage.close()


def fork_after_use(config: Config) -> None:
    """Use a queue, fork ``children`` times, use it everywhere; prints what went wrong in each process.

    ``share``: control; the children keep the parent's connections.
    """
    storage = RedisStorage(config["url"], prefix=config["prefix"])
    q = Queue(config["queue"], storage)
    q.enqueue("before", "before")
    go, gate = os.pipe()
    readers = []
    for number in range(config["children"]):
        reader, writer = os.pipe()
        if os.fork() == 0:
            os.close(gate)
            if config.get("share"):
                link = storage._client.link
                assert isinstance(link, DirectLink)
                link._short._pid = link._long._pid = os.getpid()
            os.read(go, 1)  # returns when the parent has closed its end
            os.write(writer, json.dumps(_use(q, f"child{number}", config["rounds"])).encode())
            os._exit(0)
        os.close(writer)
        readers.append(reader)
    os.close(gate)
    troubles = _use(q, "parent", config["rounds"])
    for reader in readers:
        with os.fdopen(reader, "rb") as stream:
            troubles += json.loads(stream.read() or b'["a child died"]')
    for _ in readers:
        os.wait()
    say(json.dumps(troubles))
    storage.close()


def _use(q: Queue, name: str, rounds: int) -> list[str]:
    troubles = []
    for number in range(rounds):
        id = f"{name}-{number}"
        try:
            answer = q.enqueue(id, id)
            status = q.get_status(id)
            if answer.id != id or answer.status != "queued" or status is None or status.payload != id:
                troubles.append(f"{id}: {answer} {status}")
        except Exception as error:
            troubles.append(f"{id}: {type(error).__name__}: {error}")
            if len(troubles) > 3:
                break
    return troubles


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


PROGRAMS: dict[str, Callable[[Config], None]] = {"worker": worker, "crowd": crowd, "fork_after_use": fork_after_use}


def main() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # ends with the test run
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    config = json.loads(sys.argv[2])
    mutate([tuple(mutation) for mutation in config.pop("mutations", [])])
    PROGRAMS[sys.argv[1]](config)


if __name__ == "__main__":
    main()
