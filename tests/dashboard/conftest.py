"""A queue in memory with jobs in many states, and a dashboard of it."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

import pytest

from reliq import Backoff, Job, Queue, WorkerPool
from reliq.dashboard import Dashboard

from .support import Browser


def handle(job: Job) -> Any:
    """Fails when it was told to, with the text that it was given."""
    if isinstance(job.payload, dict) and "fail" in job.payload:
        raise ValueError(job.payload["fail"])
    return {"secret result": job.payload}


def run_all(queue: Queue) -> None:
    """Let every job of the queue run to its end."""
    with Queue(queue.name, queue.storage) as worker:
        worker.handler(handle)
        assert WorkerPool(worker, threads=1, worker_id="web-1").run_until_empty(timeout=20)


@pytest.fixture
def queue() -> Iterator[Queue]:
    options: Any = {"backoff": Backoff(base=0.0, jitter=0.0), "max_attempts": 2}
    with Queue("emails", f"memory://{secrets.token_hex(8)}", **options) as queue:
        yield queue


@pytest.fixture
def reader(queue: Queue) -> Iterator[Browser]:
    """A dashboard that only looks."""
    app = Dashboard(queue)
    yield Browser(app)
    app.close()


@pytest.fixture
def actor(queue: Queue) -> Iterator[Browser]:
    """A dashboard that may act, below a prefix."""
    app = Dashboard(queue, allow_actions=True)
    yield Browser(app, "/ops/queues")
    app.close()
