"""The jobs that ``reliq demo`` runs, as an application would define them.

Each run of a job is noted in a file before it begins, so that the demo can check what
really ran, how often, in which process and when.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..queue import Queue

if TYPE_CHECKING:
    from ..job import Job

QUEUE_NAME = "reliq-demo"
DIRECTORY_VARIABLE = "RELIQ_DEMO_DIRECTORY"
#: How long the slow job works: long enough to be killed in the middle.
SLOW_SECONDS = 1.0
_LEDGER = "runs.jsonl"
_REPAIRED = "repaired"


@dataclass(frozen=True, slots=True)
class Run:
    """One execution of a job; ``at`` in epoch seconds."""

    id: str
    attempt: int
    pid: int
    worker_id: str
    at: float


class Workshop:
    """The directory that the demo and its workers share beside the queue."""

    def __init__(self, directory: Path) -> None:
        self._ledger = directory / _LEDGER
        self._repaired = directory / _REPAIRED

    def note(self, run: Run) -> None:
        """Write a run down: one append, which no other process can split."""
        line = json.dumps([run.id, run.attempt, run.pid, run.worker_id, run.at]) + "\n"
        fd = os.open(self._ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(fd, line.encode())
        finally:
            os.close(fd)

    def runs(self, id: str) -> list[Run]:
        """All runs of a job so far, in order."""
        if not self._ledger.exists():
            return []
        runs = (Run(*json.loads(line)) for line in self._ledger.read_text().splitlines())
        return [run for run in runs if run.id == id]

    def repair(self) -> None:
        """Take away what makes the broken job fail."""
        self._repaired.touch()

    @property
    def is_repaired(self) -> bool:
        """Whether the broken job can succeed."""
        return self._repaired.exists()


def make_queue() -> Queue:
    """The demo's queue on the storage of ``RELIQ_URL``, with its handler."""
    queue = Queue(QUEUE_NAME, result_ttl=300.0, dead_ttl=300.0)
    queue.execute(handle)
    return queue


def handle(job: Job) -> dict[str, Any]:
    """Run one job of the demo."""
    workshop = Workshop(Path(os.environ[DIRECTORY_VARIABLE]))
    workshop.note(Run(job.id, job.attempts, os.getpid(), job.worker_id, time.time()))
    done = _ACTIONS[job.payload["do"]](job, workshop)
    return {"done": done, "pid": os.getpid(), "attempt": job.attempts}


def _add(job: Job, _: Workshop) -> object:
    return sum(job.payload["numbers"])


def _send(job: Job, _: Workshop) -> object:
    """Fail until the attempt that is told to succeed."""
    if job.attempts < job.payload["succeeds_at"]:
        raise ConnectionError("the mail server is busy")
    return "sent"


def _report(job: Job, _: Workshop) -> object:
    """Work for a while, as well-behaved handlers do: in steps that notice when to end."""
    end = time.monotonic() + SLOW_SECONDS
    while time.monotonic() < end:
        job.check()
        job.signal.wait(0.05)
    return "report written"


def _charge(_: Job, workshop: Workshop) -> object:
    if not workshop.is_repaired:
        raise ValueError("the card has expired")
    return "charged"


_ACTIONS = {"add": _add, "send": _send, "report": _report, "charge": _charge}
