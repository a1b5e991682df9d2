"""celery: its Redis broker and backend, a worker with a pool of threads. A job is acknowledged before it runs."""

from __future__ import annotations

import logging
from typing import Any

import redis
from celery import Celery

from benchmarks.peers.adapter import Adapter, Options, main, perform


class Celeries(Adapter):
    """Defaults; the worker without gossip, mingling and heartbeats, which a single one does not need."""

    packages = ("celery", "kombu", "redis", "hiredis")

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._client = redis.Redis.from_url(options.url)
        self._app = Celery("peer", broker=options.url, backend=options.url)
        self._app.conf.update(task_ignore_result=not options.results, broker_connection_retry_on_startup=True)
        self._handle = self._app.task(name="handle")(perform)

    def enqueue(self, payload: dict[str, Any]) -> Any:
        return self._handle.delay(payload)

    def results(self, handles: list[Any]) -> list[Any]:
        return [handle.result if handle.ready() else None for handle in handles]

    def call(self, payload: dict[str, Any]) -> Any:
        return self._handle.delay(payload).get(timeout=60)

    def queued(self) -> int:
        return int(self._client.llen("celery"))

    def work(self) -> None:
        logging.disable(logging.WARNING)
        quiet = ["--loglevel=ERROR", "--without-gossip", "--without-mingle", "--without-heartbeat"]
        self._app.worker_main(["worker", "--pool=threads", f"--concurrency={self.options.concurrency}", *quiet])


if __name__ == "__main__":
    main(Celeries)
