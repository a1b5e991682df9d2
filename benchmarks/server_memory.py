"""How much memory of the server does a queued job take?"""

from __future__ import annotations

import secrets

from reliq import JsonSerde
from reliq.message import encode
from reliq.storage.base import MAX_BATCH

from .harness import Bench, Figure, payload
from .replay import record

#: Bytes beside the payload.
TARGET = 260.0
#: Both fill a hash table of a power of two to three quarters: a figure for another filling would be another one.
NUMBER, QUICK_NUMBER = 100_000, 25_000


def measure(bench: Bench) -> list[Figure]:
    """used_memory before and after so many jobs."""
    found = bench.repeat("server memory", lambda: _memory(bench))
    return [
        Figure("memory per queued job", "bytes", found["total"]),
        Figure("  beside its payload", "bytes", found["beside"], TARGET),
    ]


def _memory(bench: Bench) -> dict[str, float]:
    serde, number = JsonSerde(), bench.amount(NUMBER, QUICK_NUMBER)
    payloads = [serde.dumps(payload(n)) for n in range(number)]
    with bench.storage() as storage:
        storage.enqueue("warm", [record("warm", bytes(8), b"")])
        before = bench.used_memory()
        for first in range(0, number, MAX_BATCH):
            chunk = payloads[first : first + MAX_BATCH]
            storage.enqueue(
                "memory",
                [record(f"job-{first + n}", secrets.token_bytes(8), encode(data)) for n, data in enumerate(chunk)],
            )
        total = (bench.used_memory() - before) / number
    return {"total": total, "beside": total - sum(map(len, payloads)) / number}
