"""reliq itself, asked like everybody else."""

from __future__ import annotations

import itertools
from typing import Any

from benchmarks.peers.adapter import Adapter, Options, main, perform
from reliq import Job, Queue, WorkerPool


class Reliq(Adapter):
    """Defaults throughout."""

    packages = ("reliq", "redis", "hiredis", "orjson")

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._queues = [Queue(f"peer-{n}", options.url) for n in range(options.queues)]
        self._queue = self._queues[0]
        self._turns = itertools.cycle(range(options.queues))

    def enqueue(self, payload: dict[str, Any]) -> tuple[int, str]:
        id, turn = f"job-{payload['n']}", next(self._turns)
        self._queues[turn].enqueue(id, payload)
        return turn, id

    def enqueue_many(self, payloads: list[dict[str, Any]]) -> list[tuple[int, str]]:
        ids, turn = [f"job-{payload['n']}" for payload in payloads], next(self._turns)
        self._queues[turn].enqueue_many(list(zip(ids, payloads, strict=True)))
        return [(turn, id) for id in ids]

    def results(self, handles: list[tuple[int, str]]) -> list[Any]:
        found = {}
        for turn, queue in enumerate(self._queues):
            if ids := [id for at, id in handles if at == turn]:
                found.update(queue.get_statuses(ids))
        statuses = [found[id] for _, id in handles]
        return [status.result if status is not None and status.state == "completed" else None for status in statuses]

    def call(self, payload: dict[str, Any]) -> Any:
        return self._queue.call(f"job-{payload['n']}", payload)

    def queued(self) -> int:
        return sum(queue.counts()["queued"] for queue in self._queues)

    def work(self) -> None:
        def handle(job: Job) -> int:
            return perform(job.payload)

        for queue in self._queues:
            queue.handler(handle)
        WorkerPool(self._queues, threads=self.options.concurrency).run_forever()


if __name__ == "__main__":
    main(Reliq)
