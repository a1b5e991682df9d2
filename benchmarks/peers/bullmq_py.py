"""bullmq's client for Python: asyncio, the scripts of bullmq."""

from __future__ import annotations

import asyncio
from typing import Any

from bullmq import Job, Queue, QueueEvents, Worker
from redis.asyncio import Redis

from benchmarks.peers.adapter import AsyncAdapter, Options, main, perform_async


async def handle(job: Any, _: str) -> int:
    """bullmq hands over the job and its token."""
    return await perform_async(job.data)


class BullmqPy(AsyncAdapter):
    """Defaults. A result is waited for by the stream of events."""

    packages = ("bullmq", "redis", "hiredis")

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._connection = {"connection": options.url}
        self._queue = self.wait(self._make(Queue))
        self._events: Any = None
        self._ended: dict[str, asyncio.Future[Any]] = {}

    async def _make(self, kind: Any, **options: Any) -> Any:
        return kind("peer", {**self._connection, **options})  # where a loop runs

    async def enqueue(self, payload: dict[str, Any]) -> Any:
        return (await self._queue.add("handle", payload)).id

    async def enqueue_many(self, payloads: list[dict[str, Any]]) -> Any:
        jobs = await self._queue.addBulk([{"name": "handle", "data": payload} for payload in payloads])
        return [job.id for job in jobs]

    async def results(self, handles: list[Any]) -> list[Any]:
        jobs = [await Job.fromId(self._queue, id) for id in handles]
        return [job.returnvalue if job is not None else None for job in jobs]

    async def call(self, payload: dict[str, Any]) -> Any:
        if self._events is None:
            # A timeout of the socket would pass while the loop stands still between two questions, and end the reads.
            client = Redis.from_url(self.options.url, decode_responses=True, socket_timeout=None)
            # From the stream's beginning: others call before the first read.
            self._events = await self._make(QueueEvents, connection=client, lastEventId="0")
            self._events.on("completed", self._completed)
        job = await self._queue.add("handle", payload)
        try:
            return await asyncio.wait_for(self._future(job.id), 60)
        finally:
            del self._ended[job.id]

    def _future(self, id: str) -> asyncio.Future[Any]:
        """Whoever comes first makes it: the caller or the event."""
        return self._ended.setdefault(id, self.loop.create_future())

    def _completed(self, event: dict[str, Any], *_: Any) -> None:
        future = self._future(event["jobId"])
        if not future.done():
            future.set_result(event["returnvalue"])

    async def queued(self) -> int:
        return int(await self._queue.client.llen("bull:peer:wait"))

    def work(self) -> None:
        self.wait(self._work())

    async def _work(self) -> None:
        worker = Worker("peer", handle, {**self._connection, "concurrency": self.options.concurrency})
        await asyncio.Event().wait()
        del worker


if __name__ == "__main__":
    main(BullmqPy)
