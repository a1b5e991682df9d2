"""Broken Python: what surrounds the transitions."""

from __future__ import annotations

from .mutation import Mutation

_MEMORY = "tests/contract/test_memory.py::TestMemory::"
_REDIS = "tests/contract/test_redis.py::TestRedis::"
_LEDGER = "tests/unit/test_ledger.py::"


def _python(name: str, invariant: str, file: str, old: str, new: str, *tests: str) -> Mutation:
    return Mutation(f"python-{name}", invariant, f"{file}.py", old, new, tests)


PYTHON = (
    _python("sql-does-not-ring", "I33 whatever makes a job claimable rings", "storage/sql/storage",
            'self._wakeups.ring(queue, "work")', "pass",
            f"{_MEMORY}test_i33_whatever_makes_a_job_claimable_rings[enqueue]"),
    _python("sql-ends-wake-nobody", "I38 every end wakes every waiter", "storage/sql/storage",
            "self._wakeups.ended(queue, ended)", "pass",
            f"{_MEMORY}test_i38_every_end_wakes_every_waiter[cancel]"),
    _python("redis-lease-per-batch", "I28 a batch is settled item by item", "storage/redis/storage",
            "answers += (Settled(item.id, STATES.get(letter))", "answers += (Settled(item.id, STATES.get(reply[0]))",
            f"{_REDIS}test_i28_a_batch_is_settled_item_by_item"),
    _python("late-outcome-counts", "one outcome for each claimed job of a pool", "worker/ledger",
            "        if entry.phase is not _RUNNING:\n            return False\n", "",
            f"{_LEDGER}test_each_move_from_each_phase"),
    _python("settling-is-not-held", "I18 a heartbeat names every job that is not gone", "worker/ledger",
            "if entry.phase is not _GONE", "if entry.phase is _RUNNING",
            f"{_LEDGER}test_a_snapshot_names_what_is_not_gone_of_its_queue_only"),
)  # fmt: skip
