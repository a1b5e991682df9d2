"""What every peer is asked, in the same loops: the other end of ``benchmarks/contest.py``.

A peer's adapter runs in an environment of its own, without reliq, as ``python -m benchmarks.peers.NAME ROLE OPTIONS``.
``serve`` reads one JSON object a line on stdin and answers one a line on stdout; ``work`` works off jobs until its
stdin ends. ``adapter.mjs`` is the same for Node: keep them alike. Only the standard library may be imported here.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import json
import mmap
import os
import signal
import struct
import sys
import threading
import time
import traceback
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

#: For each number when its handler began and ended (seconds of the wall clock), and how often it ran.
STAMP = struct.Struct("=ddd")
_COUNT = struct.Struct("=d")
_PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class Options:
    """What both roles are started with."""

    url: str
    stamps: str
    concurrency: int = 8
    #: Whether results are kept, where a peer leaves the choice.
    results: bool = True
    #: How many queues; reliq only.
    queues: int = 1


class Stamps:
    """A file of stamps, shared by all worker processes and the driver."""

    def __init__(self, path: str) -> None:
        with open(path, "r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)

    def note(self, number: int, began: float) -> None:
        """The handler of this number ended now."""
        at = STAMP.size * number
        STAMP.pack_into(self._map, at, began, time.time(), _COUNT.unpack_from(self._map, at + 16)[0] + 1)


_stamps: Stamps


def perform(payload: dict[str, Any]) -> int:
    """The handler of every peer: sleeps when told to, stamps, returns a number of the payload."""
    began = time.time()
    if ms := payload.get("ms"):
        time.sleep(ms / 1000)
    number: int = payload["n"]
    _stamps.note(number, began)
    return number


async def perform_async(payload: dict[str, Any]) -> int:
    """The same for a peer whose handlers are coroutines."""
    began = time.time()
    if ms := payload.get("ms"):
        await asyncio.sleep(ms / 1000)
    number: int = payload["n"]
    _stamps.note(number, began)
    return number


class Adapter:
    """One peer. ``enqueue`` and the like are plain here, coroutines in an :class:`AsyncAdapter`."""

    #: Distributions whose versions are told.
    packages: ClassVar[Sequence[str]] = ()

    def __init__(self, options: Options) -> None:
        self.options = options

    def enqueue(self, payload: dict[str, Any]) -> Any:
        """Enqueue one job; what its result is asked with."""
        raise NotImplementedError

    def enqueue_many(self, payloads: list[dict[str, Any]]) -> Any:
        """Enqueue many at once, one handle each. Not defined by a peer that has no such thing."""
        raise NotImplementedError

    def results(self, handles: list[Any]) -> Any:
        """The result of each, None where there is none yet."""
        raise NotImplementedError

    def call(self, payload: dict[str, Any]) -> Any:
        """Enqueue and wait for the result."""
        raise NotImplementedError

    def queued(self) -> Any:
        """How many jobs are queued."""
        raise NotImplementedError

    def work(self) -> None:
        """Work off jobs with ``options.concurrency``; does not return."""
        raise NotImplementedError

    # -- how the loops run ------------------------------------------------------------

    def wait(self, value: Any) -> Any:
        """What a method returned."""
        return value

    def spread(
        self,
        lanes: int,
        items: Iterable[Any],
        deadline: float,
        act: Callable[[Any], Any],
        keep: Callable[[Any, Any], None],
    ) -> list[float]:
        """``keep(item, act(item))`` from so many threads until the deadline; the seconds of each ``act``."""
        todo, seconds, trouble = iter(items), [], []
        lock = threading.Lock()

        def lane() -> None:
            try:
                while time.perf_counter() < deadline:
                    with lock:
                        item = next(todo, None)
                    if item is None:
                        return
                    began = time.perf_counter()
                    answer = act(item)
                    seconds.append(time.perf_counter() - began)
                    keep(item, answer)
            except BaseException as error:
                trouble.append(error)

        if lanes == 1:
            lane()
        else:
            threads = [threading.Thread(target=lane) for _ in range(lanes)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        if trouble:
            raise trouble[0]
        return seconds


class AsyncAdapter(Adapter):
    """A peer made for asyncio: so many tasks of one loop take the place of threads."""

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self.loop = asyncio.new_event_loop()

    def wait(self, value: Coroutine[Any, Any, Any]) -> Any:
        """What the coroutine returns."""
        return self.loop.run_until_complete(value)

    def spread(
        self,
        lanes: int,
        items: Iterable[Any],
        deadline: float,
        act: Callable[[Any], Any],
        keep: Callable[[Any, Any], None],
    ) -> list[float]:
        """``keep(item, await act(item))`` in so many tasks until the deadline; the seconds of each ``act``."""
        todo, seconds = iter(items), []

        async def lane() -> None:
            while time.perf_counter() < deadline:
                item = next(todo, None)
                if item is None:
                    return
                began = time.perf_counter()
                answer = await act(item)
                seconds.append(time.perf_counter() - began)
                keep(item, answer)

        async def lanes_() -> None:
            await asyncio.gather(*(lane() for _ in range(lanes)))

        self.loop.run_until_complete(lanes_())
        return seconds


class _Server:
    """Answers the driver."""

    def __init__(self, adapter: Adapter) -> None:
        self._adapter = adapter
        self._handles: dict[int, Any] = {}

    def versions(self) -> dict[str, str]:
        return {name: importlib.metadata.version(name) for name in self._adapter.packages}

    def abilities(self) -> dict[str, bool]:
        return {"bulk": type(self._adapter).enqueue_many not in (Adapter.enqueue_many, AsyncAdapter.enqueue_many)}

    def enqueue(
        self, first: int, number: int, size: int, lanes: int = 1, seconds: float = 600.0, ms: int = 0
    ) -> dict[str, Any]:
        """One by one, from ``lanes`` threads, at most ``number`` and no longer than ``seconds``."""

        def keep(payload: dict[str, Any], handle: Any) -> None:
            self._handles[payload["n"]] = handle

        return self._timed(lanes, _payloads(first, number, size, ms), seconds, self._adapter.enqueue, keep)

    def enqueue_many(
        self, first: int, number: int, size: int, batch: int, seconds: float = 600.0, ms: int = 0
    ) -> dict[str, Any]:
        """In batches, from one thread."""
        payloads = _payloads(first, number, size, ms)
        before = len(self._handles)

        def keep(batch: list[dict[str, Any]], handles: Sequence[Any]) -> None:
            self._handles.update((payload["n"], handle) for payload, handle in zip(batch, handles, strict=True))

        batches = [payloads[at : at + batch] for at in range(0, number, batch)]
        answer = self._timed(1, batches, seconds, self._adapter.enqueue_many, keep)
        return {**answer, "number": len(self._handles) - before}

    def call(self, first: int, number: int, size: int, lanes: int = 1, seconds: float = 600.0) -> dict[str, Any]:
        """Calls from ``lanes`` threads; each result is compared."""
        payloads = _payloads(first, number, size, 0)
        return self._timed(
            lanes, payloads, seconds, self._adapter.call, lambda payload, found: _same(payload["n"], found)
        )

    def check(self) -> dict[str, int]:
        """Wait until every job enqueued since the last ``forget`` has its own result; how many there were."""
        numbers = list(self._handles)
        deadline = time.monotonic() + _PATIENCE_S
        for at in range(0, len(numbers), 1_000):
            part = numbers[at : at + 1_000]
            while True:
                found = self._adapter.wait(self._adapter.results([self._handles[number] for number in part]))
                missing = [n for n, result in zip(part, found, strict=True) if result is None]
                for number, result in zip(part, found, strict=True):
                    if result is not None:
                        _same(number, result)
                if not missing:
                    break
                if time.monotonic() > deadline:
                    raise AssertionError(
                        f"{len(missing)} of {len(part)} jobs have no result, the first is {missing[0]}"
                    )
                part = missing
                time.sleep(0.01)
        return {"checked": len(numbers)}

    def queued(self) -> int:
        return int(self._adapter.wait(self._adapter.queued()))

    def forget(self) -> None:
        self._handles.clear()

    def _timed(
        self,
        lanes: int,
        items: Iterable[Any],
        seconds: float,
        act: Callable[[Any], Any],
        keep: Callable[[Any, Any], None],
    ) -> dict[str, Any]:
        began_at, began = time.time(), time.perf_counter()
        each = self._adapter.spread(lanes, items, began + seconds, act, keep)
        took = time.perf_counter() - began
        each.sort()
        cuts = {str(cut): each[min(len(each) - 1, len(each) * cut // 100)] for cut in (50, 99)} if each else {}
        return {"began": began_at, "seconds": took, "number": len(each), "cuts": cuts}


def _payloads(first: int, number: int, size: int, ms: int) -> list[dict[str, Any]]:
    more = {"ms": ms} if ms else {}
    filler = "x" * size
    return [{"n": n, "s": filler, **more} for n in range(first, first + number)]


def _same(expected: int, found: Any) -> None:
    if found != expected:
        raise AssertionError(f"job {expected} has the result {found!r}")


def main(adapter: type[Adapter]) -> None:
    """``serve`` or ``work``."""
    global _stamps
    options = Options(**json.loads(sys.argv[2]))
    _stamps = Stamps(options.stamps)
    # What a peer prints must not get between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    if sys.argv[1] == "work":
        threading.Thread(target=_end_with_driver, daemon=True).start()
        adapter(options).work()
        return
    server = _Server(adapter(options))
    for line in sys.stdin:
        question = json.loads(line)
        try:
            answer: dict[str, Any] = {"ok": getattr(server, question.pop("do"))(**question)}
        except Exception as error:
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    os._exit(0)  # whatever threads and connections a peer has


def _end_with_driver() -> None:
    # Unbuffered: a thread inside of sys.stdin's buffer would hold its lock at a fork.
    while os.read(0, 1024):
        pass
    with contextlib.suppress(ProcessLookupError):
        os.killpg(0, signal.SIGKILL)
