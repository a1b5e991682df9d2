"""huey: threads, results by notification (its default polls for them). A job is lost with its worker."""

from __future__ import annotations

import threading
from typing import Any

import huey

from benchmarks.peers.adapter import Adapter, Options, main, perform


class Huey(Adapter):
    """Waits for work in BRPOP (the default) and for results in BLPOP (``notify_result``)."""

    packages = ("huey", "redis", "hiredis")

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._huey = huey.RedisHuey("peer", url=options.url, results=options.results, notify_result=True)
        self._handle = self._huey.task(name="handle")(perform)

    def enqueue(self, payload: dict[str, Any]) -> Any:
        return self._handle(payload)

    def results(self, handles: list[Any]) -> list[Any]:
        return [handle.get() for handle in handles]

    def call(self, payload: dict[str, Any]) -> Any:
        return self._handle(payload).get(blocking=True, timeout=60)

    def queued(self) -> int:
        return int(self._huey.pending_count())

    def work(self) -> None:
        consumer = self._huey.create_consumer(workers=self.options.concurrency, worker_type="thread", periodic=False)
        consumer.start()
        threading.Event().wait()


if __name__ == "__main__":
    main(Huey)
