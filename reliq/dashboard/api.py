"""The same facts as JSON, for programs; they change nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from ..facts import job_facts, queue_facts
from ..http.response import Problem
from ..job import JobStatus
from ..queue import Queue
from .rates import Rates
from .reading import PAGE, Running, list_page, search, workers_of
from .source import Source

_MAX_LIMIT = 1_000


class Api:
    """Answers by the last segment of the path; each takes the query and returns what becomes JSON."""

    def __init__(self, source: Source, rates: Rates, show_payloads: bool) -> None:
        self._source = source
        self._rates = rates
        self._show_payloads = show_payloads
        self._answers: dict[str, Callable[[Mapping[str, str]], Any]] = {
            "queues": self._queues,
            "jobs": self._jobs,
            "job": self._job,
            "workers": self._workers,
        }

    def answer(self, name: str, query: Mapping[str, str]) -> Any:
        """Raises Problem(404) for a name that is none, and InvalidJobError."""
        if name not in self._answers:
            raise Problem(404, "not-found", f"nothing is here; there are: {', '.join(self._answers)}")
        return self._answers[name](query)

    def _queues(self, query: Mapping[str, str]) -> Any:
        return {"queues": [self._queue(queue) for queue in self._chosen(query)]}

    def _queue(self, queue: Queue) -> dict[str, Any]:
        rate = self._rates.look(queue)
        return asdict(queue_facts(queue)) | {
            "completed_per_second": None if rate is None else round(rate.completed, 3),
            "failed_per_second": None if rate is None else round(rate.failed, 3),
        }

    def _jobs(self, query: Mapping[str, str]) -> Any:
        queue = self._source.find(query.get("queue", ""))
        state, cursor, term = query.get("state"), query.get("cursor"), query.get("q")
        limit = _limit(query.get("limit", str(PAGE)))
        listing = search(queue, state, term, cursor) if term else list_page(queue, state, cursor, limit)
        return {"jobs": list(map(_listed, listing.jobs)), "cursor": listing.cursor}

    def _job(self, query: Mapping[str, str]) -> Any:
        queue = self._source.find(query.get("queue", ""))
        job = queue.get_status(query.get("id", ""))
        if job is None:
            raise Problem(404, "job-not-found", "there is no such job")
        return job_facts(job, with_payload=self._show_payloads)

    def _workers(self, query: Mapping[str, str]) -> Any:
        return {"workers": [_worker(found) for queue in self._chosen(query) for found in workers_of(queue)]}

    def _chosen(self, query: Mapping[str, str]) -> list[Queue]:
        return [self._source.find(query["queue"])] if "queue" in query else self._source.all()


def _listed(job: JobStatus) -> dict[str, Any]:
    """A job as listings know it: what stands with its payload was not read."""
    found = job_facts(job)
    for name in ("headers", "after", "progress"):
        del found[name]
    return found


def _worker(found: Running) -> dict[str, Any]:
    return {
        "worker_id": found.worker_id,
        "instance": found.instance,
        "queue": found.queue,
        "threads": found.threads,
        "processing": found.processing,
        "expires_at": found.expires_at,
        "jobs": [job.id for job in found.jobs],
    }


def _limit(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 5 and 1 <= int(text) <= _MAX_LIMIT):
        raise Problem(400, "limit-invalid", f"limit must be a number from 1 to {_MAX_LIMIT}")
    return int(text)
