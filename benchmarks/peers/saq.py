"""saq: asyncio, results kept with the job. It polls for them, every 0.5 s unless told otherwise; here every 10 ms."""

from __future__ import annotations

from typing import Any

from saq import Queue, Worker

from benchmarks.peers.adapter import AsyncAdapter, Options, main, perform_async

POLL_S = 0.01


async def handle(_: Any, *, payload: dict[str, Any]) -> int:
    """saq hands over a context first, and keywords."""
    return await perform_async(payload)


class Saq(AsyncAdapter):
    """Defaults but for the polling."""

    packages = ("saq", "redis", "hiredis")

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._queue = Queue.from_url(options.url)
        self.wait(self._queue.connect())

    async def enqueue(self, payload: dict[str, Any]) -> Any:
        job = await self._queue.enqueue("handle", payload=payload)
        return job.key

    async def results(self, handles: list[Any]) -> list[Any]:
        jobs = await self._queue.jobs(handles)
        # It stores no result that is zero.
        return [job.result or 0 if job is not None and job.status == "complete" else None for job in jobs]

    async def call(self, payload: dict[str, Any]) -> Any:
        return await self._queue.apply("handle", timeout=60, poll_interval=POLL_S, payload=payload)

    async def queued(self) -> int:
        return int(await self._queue.count("queued"))

    def work(self) -> None:
        worker = Worker(self._queue, functions=[("handle", handle)], concurrency=self.options.concurrency)
        # A sweep while nothing is active holds off the next for a minute. The one that a worker begins with aborts
        # jobs that it has just taken and not yet marked (seen in most drains of a queue filled before).
        self.wait(self._queue.sweep(lock=60))
        self.wait(worker.start())


if __name__ == "__main__":
    main(Saq)
