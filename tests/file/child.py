"""What other processes do in these tests: ``python -m tests.file.child ROLE DIRECTORY ...``.

Each line printed is a fact that was acknowledged by the storage before it was printed.
"""

from __future__ import annotations

import os
import sys
import time

from reliq.storage.base import NewRecord, Outcome, Verb, Worker
from reliq.storage.sql.file import FileStorage


def record(id: str) -> NewRecord:
    return NewRecord(id, os.urandom(8), b"payload", 5, 600_000, 600_000, 600_000)


def say(*words: object) -> None:
    print(*words, flush=True)


def produce(storage: FileStorage, prefix: str, count: str) -> None:
    """Enqueue one by one; print what was accepted."""
    for n in range(int(count)):
        [answer] = storage.enqueue("q", [record(f"{prefix}{n}")])
        say(answer.status, answer.id)


def work(storage: FileStorage, label: str) -> None:
    """Claim and complete for ever; print what was completed."""
    worker = Worker(label, str(os.getpid()), ttl_ms=1_000)
    bell = storage.doorbell(["q"], "work")
    serial = 0
    while True:
        serial += 1
        jobs = storage.claim("q", worker, 10, serial=serial, lease_ms=1_000).jobs
        done = [Outcome(job.id, job.nonce, job.token, Verb.COMPLETE, result=job.id.encode()) for job in jobs]
        for settled in storage.settle("q", worker, done):
            say("done" if settled.state else "lost", settled.id)
        if not jobs:
            bell.wait(0.5)


def hold(storage: FileStorage, label: str) -> None:
    """Claim everything and never come back."""
    worker = Worker(label, str(os.getpid()))
    jobs = storage.claim("q", worker, 100, serial=1, lease_ms=30_000).jobs
    say("holds", len(jobs))
    time.sleep(600)


def sleep_on_bell(storage: FileStorage, bell: str) -> None:
    """Wait for a ring, without a look of its own; print how it came."""
    storage.fallback_ms = 60_000
    doorbell = storage.doorbell(["q"], "due" if bell == "due" else "work")
    say("asleep")
    say("rang", doorbell.wait(30), time.time())
    doorbell.close()


def wait_for(storage: FileStorage, id: str) -> None:
    """Wait for a job's end, without a look of its own."""
    storage.fallback_ms = 60_000
    say("asleep")
    snapshot = storage.wait("q", id, timeout=30)
    say(snapshot.state if snapshot else None, time.time())


def fork(storage: FileStorage) -> None:
    """Enqueue in the parent, the child and the parent again, closing in every order."""
    storage.enqueue("q", [record("before")])
    child = os.fork()
    if child == 0:
        storage.enqueue("q", [record(f"child-{n}") for n in range(100)])
        grandchild = os.fork()
        if grandchild == 0:
            storage.enqueue("q", [record("grandchild")])
            os._exit(0)
        os.waitpid(grandchild, 0)
        storage.close()
        os._exit(0)
    storage.enqueue("q", [record("parent")])
    storage.close()
    assert os.waitpid(child, 0)[1] == 0


ROLES = {
    "produce": produce, "work": work, "hold": hold, "sleep_on_bell": sleep_on_bell, "wait_for": wait_for, "fork": fork,
}  # fmt: skip

if __name__ == "__main__":
    role, directory, *arguments = sys.argv[1:]
    storage = FileStorage(directory)
    try:
        ROLES[role](storage, *arguments)  # type: ignore[operator]
    finally:
        storage.close()
