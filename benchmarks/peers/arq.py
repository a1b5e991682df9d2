"""arq: asyncio. It polls for jobs and for results, every 0.5 s unless told otherwise; here every 10 ms."""

from __future__ import annotations

from typing import Any

from arq import create_pool, func
from arq.connections import RedisSettings
from arq.constants import default_queue_name
from arq.worker import Worker

from benchmarks.peers.adapter import AsyncAdapter, Options, main, perform_async

POLL_S = 0.01


async def handle(_: Any, payload: dict[str, Any]) -> int:
    """arq hands over a context first."""
    return await perform_async(payload)


class Arq(AsyncAdapter):
    """Defaults but for the polling."""

    packages = ("arq", "redis", "hiredis")

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._settings = RedisSettings.from_dsn(options.url)
        self._pool = self.wait(create_pool(self._settings))

    async def enqueue(self, payload: dict[str, Any]) -> Any:
        return await self._pool.enqueue_job("handle", payload)

    async def results(self, handles: list[Any]) -> list[Any]:
        infos = [await job.result_info() for job in handles]
        return [info.result if info is not None else None for info in infos]

    async def call(self, payload: dict[str, Any]) -> Any:
        job = await self.enqueue(payload)
        return await job.result(timeout=60, poll_delay=POLL_S)

    async def queued(self) -> int:
        return int(await self._pool.zcard(default_queue_name))

    def work(self) -> None:
        self.wait(self._work())

    async def _work(self) -> None:
        await Worker(
            functions=[func(handle, name="handle")],
            redis_settings=self._settings,
            max_jobs=self.options.concurrency,
            poll_delay=POLL_S,
            keep_result=3600 if self.options.results else 0,
        ).async_run()


if __name__ == "__main__":
    main(Arq)
