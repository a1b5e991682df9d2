"""What does this machine allow: a round trip, a script that does nothing, a write to the disk?"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import redis

from .harness import Bare, Bench, Figure, directory

THREADS = 8


def measure(bench: Bench) -> list[Figure]:
    """Loops with nothing around them."""
    found = bench.repeat("limits", lambda: _limits(bench))
    return [
        Figure("GET, one pinned connection", "1/s", found["get"]),
        Figure("GET through the client's pool", "1/s", found["pooled"]),
        Figure("no-op EVALSHA, one pinned connection", "1/s", found["script"]),
        Figure(f"no-op EVALSHA, {THREADS} threads, each pinned", "1/s", found["threads"]),
        Figure("append of 100 B + fdatasync", "1/s", found["disk"]),
    ]


def _limits(bench: Bench) -> dict[str, float]:
    seconds, url = bench.seconds(0.7, 0.25), bench.server.url
    script = ("EVALSHA", bench.load_script("return 1"), 0)
    with redis.Redis.from_url(url, protocol=2) as client, directory() as path:
        client.set("key", "x" * 64)
        return {
            "get": bare_rate(url, ("GET", "key"), seconds),
            "pooled": _rate(lambda: client.get("key"), seconds),
            "script": bare_rate(url, script, seconds),
            "threads": bare_rate(url, script, seconds, THREADS),
            "disk": _disk(path / "file", seconds),
        }


def bare_rate(url: str, command: tuple[object, ...], seconds: float, threads: int = 1) -> float:
    """Round trips per second of one command, from connections of their own."""
    rates: list[float] = []

    def loop() -> None:
        link = Bare(url)
        try:
            rates.append(_rate(lambda: link.ask(command), seconds))
        finally:
            link.close()

    lanes = [threading.Thread(target=loop) for _ in range(threads)]
    for lane in lanes:
        lane.start()
    for lane in lanes:
        lane.join()
    if len(rates) < threads:
        raise AssertionError("a loop failed")
    return sum(rates)


def _rate(act: Callable[[], object], seconds: float) -> float:
    began, number = time.perf_counter(), 0
    while (took := time.perf_counter() - began) < seconds:
        act()
        number += 1
    return number / took


def _disk(path: Path, seconds: float) -> float:
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write() -> None:
        os.write(descriptor, b"x" * 100)
        os.fdatasync(descriptor)

    try:
        return _rate(write, seconds)
    finally:
        os.close(descriptor)
