"""rq: a process per job at a time, so as many processes as others have threads; SimpleWorker, which does not fork."""

from __future__ import annotations

import logging
import os
import signal
from typing import Any

import redis
import rq
from rq.results import Result

from benchmarks.peers.adapter import Adapter, Options, main

#: Workers import it by this name.
HANDLER = "benchmarks.peers.adapter.perform"


class Rq(Adapter):
    """``Queue.enqueue``, ``enqueue_many`` and ``latest_result(timeout)``, which blocks on the stream of results."""

    packages = ("rq", "redis", "hiredis")

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._connection = redis.Redis.from_url(options.url)
        self._queue = rq.Queue("peer", connection=self._connection)
        self._ttl = 500 if options.results else 0

    def enqueue(self, payload: dict[str, Any]) -> Any:
        return self._queue.enqueue(HANDLER, payload, result_ttl=self._ttl)

    def enqueue_many(self, payloads: list[dict[str, Any]]) -> list[Any]:
        return list(
            self._queue.enqueue_many(
                [rq.Queue.prepare_data(HANDLER, (payload,), result_ttl=self._ttl) for payload in payloads]
            )
        )

    def results(self, handles: list[Any]) -> list[Any]:
        return [job.return_value(refresh=True) for job in handles]

    def call(self, payload: dict[str, Any]) -> Any:
        result = self.enqueue(payload).latest_result(timeout=60)
        return result.return_value if result is not None and result.type == Result.Type.SUCCESSFUL else result

    def queued(self) -> int:
        return int(self._queue.count)

    def work(self) -> None:
        logging.disable(logging.WARNING)
        for _ in range(self.options.concurrency - 1):
            if os.fork() == 0:
                break
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        connection = redis.Redis.from_url(self.options.url)
        rq.SimpleWorker(["peer"], connection=connection).work(logging_level="ERROR")


if __name__ == "__main__":
    main(Rq)
