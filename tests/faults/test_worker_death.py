"""Workers that are killed, stuck or share a name."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from ..servers import RedisServer
from .support import Bench, Mutation, Program, never, until

#: Recovery takes the leases of dead workers away from nobody.
NO_RECOVERY: Mutation = ("recovery", "if #ids == 0 then return {} end", "if true then return {} end")
#: A lease of a batch counts like any other.
COUNT_BATCHES: Mutation = ("claim", "#ids > 1 and BATCH or 0", "0")
#: Whenever nobody looked for a while, every worker gets its ttl anew.
ENDLESS_GRACE: tuple[Mutation, ...] = (
    ("reap", "is_late and deadline > last and graced == ''", "is_late"),
    (
        "reap",
        "if deadline <= now then redis.call('ZADD', tag .. ':workers'",
        "if true then redis.call('ZADD', tag .. ':workers'",
    ),
)  # fmt: skip


def _kill_in_the_middle(bench: Bench, worker_ttl: float, **survivor: object) -> None:
    """A worker is killed inside a handler; another, started before, is there to take over."""
    with bench.worker(worker_ttl=worker_ttl) as victim:
        bench.queue.enqueue("job", {"hang": True})
        until(lambda: bench.runs()["job"] == 1)
        with bench.worker(worker_ttl=worker_ttl, **survivor):
            victim.kill()
            killed_at = time.monotonic()
            try:
                until(lambda: bench.runs("end")["job"] == 1, worker_ttl + 2, "the recovery")
            finally:
                took = time.monotonic() - killed_at
            assert took <= worker_ttl + 2
            assert bench.queue.call("job", timeout=2) == "job"
            status = bench.queue.get_status("job")
            assert status is not None
            assert status.attempts == 2
            assert status.error is not None
            assert status.error.startswith("StalledError")


@pytest.mark.parametrize("worker_ttl", [1.5, 15.0])
def test_a_job_whose_worker_is_killed_is_finished_by_another(bench: Bench, worker_ttl: float) -> None:
    _kill_in_the_middle(bench, worker_ttl)


def test_control_without_recovery_the_job_of_a_killed_worker_is_stranded(bench: Bench) -> None:
    with pytest.raises(AssertionError, match="the recovery did not happen"):
        _kill_in_the_middle(bench, 1.5, mutations=[NO_RECOVERY])


def _until_dead_or_done(worker: Program, bench: Bench) -> None:
    until(lambda: not worker.is_running or not any(bench.queue.counts()[s] for s in ("queued", "processing")))


def _kill_in_a_batch(bench: Bench, *mutations: Mutation) -> tuple[set[str], set[str]]:
    """100 jobs with one attempt each, one of which kills its process: who completed, who is a dead letter."""
    q = bench.queue
    config = {"worker_ttl": 1.5, "mutations": mutations}
    with ExitStack() as stack:
        worker = stack.enter_context(bench.worker(**config))
        # Fast jobs teach the pool to claim many at once.
        q.enqueue_many((f"warm-{n}", None) for n in range(4000))
        until(lambda: q.counts()["completed"] == 4000)
        q.pause()
        q.enqueue_many((f"job-{n}", None) for n in range(50))
        q.enqueue("poison", {"die": True}, max_attempts=1)
        q.enqueue_many((f"job-{n}", None) for n in range(50, 99))
        q.resume()
        until(lambda: not worker.is_running, what="the poison")
        held = q.counts()["processing"]
        assert held > 10, f"only {held} jobs were held: this was no batch"
        deadline = time.monotonic() + 60
        while any(q.counts()[state] for state in ("queued", "processing", "failing")):
            assert time.monotonic() < deadline, q.counts()
            if not worker.is_running:
                worker = stack.enter_context(bench.worker(**config))
            _until_dead_or_done(worker, bench)
        statuses = q.get_statuses(["poison", *(f"job-{n}" for n in range(99))])
        ended = {id: status.state for id, status in statuses.items() if status is not None}
        assert len(ended) == 100
        return (
            {id for id, state in ended.items() if state == "completed"},
            {id for id, state in ended.items() if state == "failed"},
        )


@pytest.fixture
def one_attempt(server: RedisServer, tmp_path: Path) -> object:
    return Bench(server, tmp_path, max_attempts=1)


def test_a_poison_job_takes_none_of_its_batch_along(one_attempt: Bench) -> None:
    with one_attempt as bench:
        completed, failed = _kill_in_a_batch(bench)
    assert failed == {"poison"}
    assert len(completed) == 99


def test_control_where_batches_count_a_poison_job_buries_its_neighbours(one_attempt: Bench) -> None:
    with one_attempt as bench:
        _, failed = _kill_in_a_batch(bench, COUNT_BATCHES)
    assert len(failed) > 1


def _same_label(bench: Bench, **config: object) -> None:
    """Two processes with one worker_id, each in the middle of a long job."""
    config = {"worker_id": "same", "worker_ttl": 1.5, **config}
    with bench.worker(**config) as first:
        bench.queue.enqueue("first", {"seconds": 4})
        until(lambda: bench.runs()["first"] == 1)
        with bench.worker(**config) as second:
            bench.queue.enqueue("second", {"hang": True})
            until(lambda: bench.runs()["second"] == 1)
            assert {worker.key.rpartition("~")[0] for worker in bench.storage.workers("q")} == {"same"}
            # The heartbeats of the one keep neither the lease of the other alive, nor give it back.
            second.kill()
            until(lambda: bench.runs("end")["second"] == 1, 8, "the recovery")
            assert first.is_running
            until(lambda: bench.runs("end")["first"] == 1)
        assert bench.runs()["first"] == 1
        assert bench.runs()["second"] == 2


def test_two_processes_with_one_worker_id_hold_their_own_leases(bench: Bench) -> None:
    _same_label(bench)


def test_control_one_identity_for_two_processes_mixes_their_leases(bench: Bench) -> None:
    with pytest.raises(AssertionError):
        _same_label(bench, instance="same")


@pytest.mark.parametrize(("worker_ttl", "runs"), [(None, 2), (60.0, 1)], ids=["default_ttl", "raised_ttl"])
def test_a_handler_that_holds_the_gil_is_delivered_again_unless_the_ttl_is_raised(
    bench: Bench, worker_ttl: float | None, runs: int
) -> None:
    """Each case is the other's control: 20 s without a heartbeat are death at 15 s, and none at 60 s."""
    config = {} if worker_ttl is None else {"worker_ttl": worker_ttl}
    with bench.worker(**config, visibility_timeout=60.0) as first:
        bench.queue.enqueue("job", {"gil": 20})
        until(lambda: bench.runs()["job"] == 1)
        stuck = bench.executions()[0]
        assert stuck["pid"] == first.pid
        with bench.worker(**config, visibility_timeout=60.0):
            if runs == 2:
                until(lambda: bench.runs()["job"] == 2, 20, "the second delivery")
                again = bench.executions()[1]
                assert 14 < again["at"] - stuck["at"] < 18
                assert again["pid"] != first.pid
            until(lambda: bench.runs("end")["job"] == runs, 45)
            assert bench.queue.call("job", timeout=5) == "job"
        assert first.terminate() == 0
    assert bench.runs()["job"] == runs


def _restarting_worker(bench: Bench, *mutations: Mutation) -> None:
    """A worker that never lives long: 2 s up, 0.6 s down, again and again; the first one dies with a job.

    A fifth of 10 s up, 3 s down, worker_ttl 15 s and a reap interval of 1 s, whose proportions decide.
    """
    config = {"worker_ttl": 3.0, "reaper_interval": 0.2, "mutations": mutations}
    with bench.worker(**config) as first:
        bench.queue.enqueue("job", {"hang": True})
        until(lambda: bench.runs()["job"] == 1)
        first.kill()
    killed_at = time.monotonic()
    # Due after the ttl (3 s), the grace of one restart (3 s) and until somebody is up to look.
    while time.monotonic() < killed_at + 12:
        never(lambda: False, 0.6)
        with bench.worker(**config) as successor:
            if not never(lambda: bench.runs("end")["job"], 2.0):
                return
            successor.kill()
    raise AssertionError("the job of the first worker was never recovered")


def test_a_worker_that_keeps_restarting_gets_its_dead_predecessors_job_back(bench: Bench) -> None:
    _restarting_worker(bench)


def test_control_grace_without_end_keeps_a_dead_predecessors_job_for_ever(bench: Bench) -> None:
    with pytest.raises(AssertionError, match="never recovered"):
        _restarting_worker(bench, *ENDLESS_GRACE)


def test_a_stop_gives_an_unfinished_job_back_uncounted(bench: Bench) -> None:
    with bench.worker(stop_timeout=0.2) as leaving:
        bench.queue.enqueue("job", {"hang": True}, max_attempts=2)
        until(lambda: bench.runs()["job"] == 1)
        assert leaving.terminate() == 0
        status = bench.queue.get_status("job")
        assert status is not None
        assert (status.state, status.attempts) == ("queued", 0)
