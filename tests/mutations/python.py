"""Broken Python: what surrounds the transitions."""

from __future__ import annotations

from .mutation import Mutation

_MEMORY = "tests/contract/test_memory.py::TestMemory::"
_REDIS = "tests/contract/test_redis.py::TestRedis::"
_LEDGER = "tests/unit/test_ledger.py::"
_TICKS = "tests/unit/test_ticks.py::"
_SCHEDULES = "tests/e2e/test_schedules.py::"


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
    _python("wire-stays-with-a-former-master", "a repeated command reaches the new master", "storage/redis/wire",
            "if isinstance(error, ReadOnlyError):", "if False:",
            "tests/regression/test_client_faults.py::test_a_connection_to_a_server_that_became_a_replica_is_given_up"),
    _python("late-outcome-counts", "one outcome for each claimed job of a pool", "worker/ledger",
            "        if entry.phase is not _RUNNING:\n            return False\n", "",
            f"{_LEDGER}test_each_move_from_each_phase"),
    _python("settling-is-not-held", "I18 a heartbeat names every job that is not gone", "worker/ledger",
            "if entry.phase is not _GONE", "if entry.phase is _RUNNING",
            f"{_LEDGER}test_a_snapshot_names_what_is_not_gone_of_its_queue_only"),
    _python("ticks-have-random-nonces", "I11 a tick that is enqueued again is recognised", "schedule",
            'hashlib.blake2b(f"{queue}\\0{name}\\0{tick_ms}".encode(), digest_size=8).digest()',
            '__import__("os").urandom(8)',
            f"{_SCHEDULES}test_a_pool_that_lags_behind_repeats_nothing[memory-50000-cancelled]"),
    _python("ticks-are-soon-forgotten", "a tick stays known for some minutes", "schedule",
            "dedup_ttl_ms=max(job.dedup_ttl_ms, MIN_DEDUP_MS)", "dedup_ttl_ms=job.dedup_ttl_ms",
            f"{_SCHEDULES}test_a_pool_that_lags_behind_repeats_nothing[memory-540000-completed]"),
    _python("schedule-moves-first", "a schedule moves when its tick is enqueued, never before", "ticks",
            "accepted = self._enqueue(queue, jobs) if jobs else 0",
            "self._storage.move_schedule(queue, name, schedule.next_ms, due.next_ms)\n"
            "        accepted = self._enqueue(queue, jobs) if jobs else 0",
            f"{_SCHEDULES}test_a_crash_before_the_enqueue_loses_nothing[memory]"),
    _python("stale-ticks-are-carried-out", "what a pool saw long ago is seen anew", "ticks",
            "if seen.is_old:", "if False:",
            f"{_TICKS}test_what_was_seen_long_ago_is_not_acted_on[monotonic]"),
    _python("tick-in-trouble-spins", "what cannot be carried out is not tried without a pause", "ticks",
            "RETRY_MS if in_trouble == len(ticks) else 0", "0",
            f"{_TICKS}test_the_reaper_does_not_spin_on_what_it_cannot_carry_out"),
    _python("replaced-schedule-is-moved-on", "an old schedule's tick moves no new one", "schedules",
            "                next_ms -= 1\n", "                pass\n",
            f"{_SCHEDULES}test_a_pool_that_lags_behind_does_not_move_what_replaced_its_schedule[memory]"),
)  # fmt: skip
