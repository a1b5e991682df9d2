"""How much server time does a job cost, by batch size?"""

from __future__ import annotations

import secrets
from collections.abc import Callable

from reliq import JsonSerde
from reliq.message import encode
from reliq.storage.base import Claimed, Outcome, Verb, Worker

from .harness import Bare, Bench, Figure, payload
from .replay import record

SIZES = (1, 10, 100, 500)
#: Microseconds per job in batches of 100.
TARGETS = {"enqueue": 2.0, "claim": 3.5, "settle": 5.0}
_WORKER = Worker("benchmark", "0")
_TOUCH = """
local found = redis.call('HMGET', KEYS[1], unpack(ARGV))
local fields = {}
for i, id in ipairs(ARGV) do fields[2 * i - 1], fields[2 * i] = id, found[i] or string.rep('r', 69) end
redis.call('HSET', KEYS[1], unpack(fields))
return #fields
"""


def measure(bench: Bench) -> list[Figure]:
    """Server microseconds of no-op scripts for comparison, then of each transition."""
    found = bench.repeat("calibration", lambda: calibrate(bench))
    figures = [
        Figure("no-op EVALSHA", "us/call", found["noop"]),
        Figure("HMGET + HSET of 100 ids in a script", "us/call", found["touch"]),
    ]
    for size in (1, 100) if bench.quick else SIZES:
        costs = bench.repeat(f"server cost, batches of {size}", lambda size=size: cost(bench, size))  # type: ignore[misc]
        figures += [
            Figure(f"{name}, batches of {size}", "us/job", costs[name], TARGETS[name] if size == 100 else None)
            for name in TARGETS
        ]
    return figures


def calibrate(bench: Bench) -> dict[str, float]:
    link = Bare(bench.server.url)
    try:
        noop, touch = bench.load_script("return 1"), bench.load_script(_TOUCH)
        ids = [f"job-{number}" for number in range(100)]
        found = {}
        for name, command, times in (
            ("noop", ("EVALSHA", noop, 0), bench.amount(5_000, 2_000)),
            ("touch", ("EVALSHA", touch, 1, "touched", *ids), bench.amount(500, 200)),
        ):
            link.ask(command)
            before, _ = bench.script_usec()
            for _ in range(times):
                link.ask(command)
            found[name] = (bench.script_usec()[0] - before) / times
        return found
    finally:
        link.close()


def cost(bench: Bench, size: int) -> dict[str, float]:
    number = {1: bench.amount(3_000, 1_000), 10: bench.amount(10_000, 3_000)}.get(size, bench.amount(20_000, 8_000))
    serde = JsonSerde()
    jobs = [record(f"job-{n}", secrets.token_bytes(8), encode(serde.dumps(payload(n)))) for n in range(number)]
    claimed: list[Claimed] = []
    with bench.storage() as storage:
        # The scripts are loaded by their first use, outside of the measured time.
        storage.enqueue("warm", [record("warm", bytes(8), b"")])
        warm = storage.claim("warm", _WORKER, 1, serial=1, lease_ms=60_000).jobs
        storage.settle("warm", _WORKER, [_completed(job) for job in warm])

        def enqueue() -> None:
            for at in range(0, number, size):
                storage.enqueue("cost", jobs[at : at + size])

        def claim() -> None:
            serial = 1
            while found := storage.claim("cost", _WORKER, size, serial=serial, lease_ms=600_000).jobs:
                claimed.extend(found)
                serial += 1

        def settle() -> None:
            for at in range(0, number, size):
                answers = storage.settle("cost", _WORKER, [_completed(job) for job in claimed[at : at + size]])
                assert not any(answer.is_lost for answer in answers)

        steps: list[tuple[str, Callable[[], None]]] = [("enqueue", enqueue), ("claim", claim), ("settle", settle)]
        costs = {}
        for name, step in steps:
            before, _ = bench.script_usec()
            step()
            costs[name] = (bench.script_usec()[0] - before) / number
            if len(claimed) not in (0, number):
                raise AssertionError(f"{number} jobs enqueued, {len(claimed)} claimed")
        return costs


def _completed(job: Claimed) -> Outcome:
    return Outcome(job.id, job.nonce, job.token, Verb.COMPLETE, result=b"null")
