"""A queue in memory, a pool for it, and a server in front."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest

from reliq import Backoff, Job, Queue, Reject, WorkerPool
from reliq.http import endpoint

from .support import Address, serving


def handle(job: Job) -> Any:
    """Tells what it was given; fails when it was told to."""
    if isinstance(job.payload, dict) and "fail" in job.payload:
        raise Reject(job.payload["fail"])
    return {"payload": job.payload, "headers": dict(job.headers), "id": job.id}


@pytest.fixture
def queue() -> Iterator[Queue]:
    with Queue("doors", f"memory://{secrets.token_hex(8)}", backoff=Backoff(base=0.0, jitter=0.0)) as queue:
        queue.execute(handle)
        yield queue


@pytest.fixture
def pool(queue: Queue) -> Iterator[WorkerPool]:
    """Runs the queue's jobs as they come."""
    pool = WorkerPool(queue, threads=2).start()
    yield pool
    pool.stop()


@pytest.fixture
def door(queue: Queue) -> Iterator[Address]:
    """The queue behind an endpoint without options."""
    with serving(endpoint(queue)) as address:
        yield address


def run_all(queue: Queue) -> None:
    """Let every job of the queue run to its end."""
    assert WorkerPool(queue, threads=1).run_until_empty(timeout=10)


def serve(queue: Queue, **options: Any) -> AbstractContextManager[Address]:
    """The queue behind an endpoint with options."""
    return serving(endpoint(queue, **options))
