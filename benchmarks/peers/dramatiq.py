"""dramatiq: its Redis broker, a worker of so many threads, results in its Redis backend."""

from __future__ import annotations

import threading
from typing import Any

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.results import ResultMissing, Results
from dramatiq.results.backends import RedisBackend

from benchmarks.peers.adapter import Adapter, Options, main, perform


class Dramatiq(Adapter):
    """The default middleware; the results' middleware only with results."""

    packages = ("dramatiq", "redis", "hiredis")

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._broker = RedisBroker(url=options.url)
        self._backend = RedisBackend(url=options.url)
        if options.results:
            self._broker.add_middleware(Results(backend=self._backend, store_results=True))
        dramatiq.set_broker(self._broker)
        # Without results a value that is returned is warned about for each job.
        self._actor = dramatiq.actor(perform if options.results else lambda payload: (perform(payload), None)[1],
                                     actor_name="handle")  # fmt: skip

    def enqueue(self, payload: dict[str, Any]) -> Any:
        return self._actor.send(payload)

    def results(self, handles: list[Any]) -> list[Any]:
        return [self._result(handle) for handle in handles]

    def _result(self, message: Any) -> Any:
        try:
            return message.get_result(backend=self._backend)
        except ResultMissing:
            return None

    def call(self, payload: dict[str, Any]) -> Any:
        return self._actor.send(payload).get_result(backend=self._backend, block=True, timeout=60_000)

    def queued(self) -> int:
        return int(self._broker.client.llen("dramatiq:default"))

    def work(self) -> None:
        dramatiq.Worker(self._broker, worker_threads=self.options.concurrency).start()
        threading.Event().wait()


if __name__ == "__main__":
    main(Dramatiq)
