"""taskiq: asyncio, its broker on a Redis stream. It polls for results, by default every 0.2 s; here every 10 ms."""

from __future__ import annotations

from typing import Any

from redis.asyncio import Redis
from taskiq.api import run_receiver_task
from taskiq_redis import RedisAsyncResultBackend, RedisStreamBroker

from benchmarks.peers.adapter import AsyncAdapter, Options, main, perform_async

POLL_S = 0.01


async def handle(payload: dict[str, Any]) -> int:
    """Its parameters are validated by their annotations."""
    return await perform_async(payload)


class Taskiq(AsyncAdapter):
    """Defaults; the consumer group starts at the first message, so that a worker finds what was queued before it."""

    packages = ("taskiq", "taskiq-redis", "redis", "hiredis")

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._broker = RedisStreamBroker(url=options.url, consumer_id="0")
        if options.results:
            backend: Any = RedisAsyncResultBackend(redis_url=options.url, result_ex_time=600)
            self._broker = self._broker.with_result_backend(backend)
        self._client: Any = Redis.from_url(options.url)
        self._task = self._broker.task(task_name="handle")(handle)

    async def enqueue(self, payload: dict[str, Any]) -> Any:
        return await self._task.kiq(payload)

    async def results(self, handles: list[Any]) -> list[Any]:
        return [(await task.get_result()).return_value if await task.is_ready() else None for task in handles]

    async def call(self, payload: dict[str, Any]) -> Any:
        task = await self._task.kiq(payload)
        return (await task.wait_result(check_interval=POLL_S, timeout=60)).return_value

    async def queued(self) -> int:
        return int(await self._client.xlen("taskiq"))

    def work(self) -> None:
        self.wait(run_receiver_task(self._broker, max_async_tasks=self.options.concurrency, run_startup=True))


if __name__ == "__main__":
    main(Taskiq)
