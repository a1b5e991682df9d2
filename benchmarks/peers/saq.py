"""saq: asyncio, results kept with the job, waited for over pub/sub."""

from __future__ import annotations

from typing import Any

from saq import Queue, Worker

from benchmarks.peers.adapter import AsyncAdapter, Options, main, perform_async


async def handle(_: Any, *, payload: dict[str, Any]) -> int:
    """saq hands over a context first, and keywords."""
    return await perform_async(payload)


class Saq(AsyncAdapter):
    """Defaults throughout."""

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
        return [job.result if job is not None and job.status == "complete" else None for job in jobs]

    async def call(self, payload: dict[str, Any]) -> Any:
        return await self._queue.apply("handle", timeout=60, payload=payload)

    async def queued(self) -> int:
        return int(await self._queue.count("queued"))

    def work(self) -> None:
        worker = Worker(self._queue, functions=[("handle", handle)], concurrency=self.options.concurrency)
        self.wait(worker.start())


if __name__ == "__main__":
    main(Saq)
