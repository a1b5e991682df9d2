"""Run jobs in the thread of a test, by the code that a worker runs them with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..errors import InvalidJobError, LeaseLostError
from ..job import Signal
from ..manual import ClaimedJob
from ..queue import Handler, Queue
from ..worker.execution import Executor, Finished

WORKER_ID = "reliq-testing"


@dataclass(frozen=True, slots=True)
class Ran:
    """One run of a job. ``state`` is where the job went: ``completed``, ``failing``, ``queued`` or ``failed``.

    ``result`` is what the handler returned, ``error`` what it raised (or why its result could not be stored).
    """

    id: str
    state: str
    result: Any = None
    error: BaseException | None = None

    def check(self) -> Any:
        """The result; raises what the handler raised, with its traceback."""
        if self.error is not None:
            raise self.error
        return self.result


def run_one(queue: Queue) -> Ran | None:
    """Claim the next job, run the queue's handler in this thread, settle; None when no job is queued now.

    What the handler raises is in the answer, and the job goes where it would go in a worker; only what is meant for
    the test itself (Ctrl-C, ``pytest.fail``) is raised on, after the settle. A ``time_limit`` is not enforced and
    nothing renews the lease. Raises InvalidJobError for a queue without a handler.
    """
    if queue.function is None:
        raise InvalidJobError(f"queue {queue.name!r} has no handler")
    jobs = queue.claim(worker_id=WORKER_ID)
    if not jobs:
        return None
    [job] = jobs
    finished = execute(queue, queue.function, job)
    settled = job._worker.settle(finished.outcome)
    error = finished.error
    if error is not None and not isinstance(error, Exception | SystemExit):
        raise error
    if settled.state is None:
        raise LeaseLostError(f"job {job.id!r} was taken away while its handler ran: nothing was changed")
    return Ran(job.id, settled.state.value, finished.result, error)


def execute(queue: Queue, handler: Handler, job: ClaimedJob) -> Finished:
    """Run a claimed job as a runner does; nothing is settled."""
    executor = Executor(queue, handler, WORKER_ID, lambda event: None)
    return executor.run(job._claimed, Signal(), lambda deadline, envelope: None)


def run_all(queue: Queue, *, max_runs: int = 1000) -> list[Ran]:
    """:meth:`run_one` until no job is queued now, also those that handlers enqueue; what waits for a time stays.

    Raises AssertionError after ``max_runs``, for jobs that always make new ones.
    """
    runs: list[Ran] = []
    while (ran := run_one(queue)) is not None:
        runs.append(ran)
        if len(runs) >= max_runs:
            raise AssertionError(f"queue {queue.name!r} still has jobs after {max_runs} runs, the last was {ran}")
    return runs
