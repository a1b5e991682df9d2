"""What a dashboard may change, each in bounded steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ..http.response import Problem
from ..lifecycle import State
from ..queue import Queue
from ..storage.base import MAX_BATCH

#: How long one request works before it shows how far it came, in seconds.
STEP_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Step:
    """What a step did: ``done`` jobs in all steps so far, ``left`` more to go. ``status`` is the answer of a cancel."""

    done: int = 0
    left: int = 0
    status: str = ""


@dataclass(frozen=True, slots=True)
class Action:
    """One action. ``button`` is what its button says, ``effect`` what a question about it says; without an effect
    nobody is asked. ``takes``: a ``"queue"``, ``"jobs"`` of it by id, or ``"all"`` dead letters."""

    button: str
    takes: str
    effect: str
    is_destructive: bool
    run: Callable[[Queue, Sequence[str], Step], Step]


def _pause(queue: Queue, _: Sequence[str], __: Step) -> Step:
    queue.pause()
    return Step()


def _resume(queue: Queue, _: Sequence[str], __: Step) -> Step:
    queue.resume()
    return Step()


def _cancel(queue: Queue, ids: Sequence[str], _: Step) -> Step:
    statuses = [queue.cancel(id, running=True).status for id in ids]
    return Step(sum(status in ("cancelled", "cancelling") for status in statuses), status=statuses[0])


def _retry(queue: Queue, ids: Sequence[str], _: Step) -> Step:
    return Step(len(queue.storage.revive(queue.name, ids)))


def _discard(queue: Queue, ids: Sequence[str], _: Step) -> Step:
    return Step(len(queue.storage.discard(queue.name, ids)))


def _retry_all(queue: Queue, _: Sequence[str], step: Step) -> Step:
    return _bounded(step, lambda limit: len(queue.storage.revive(queue.name, None, limit=limit)))


def _discard_all(queue: Queue, _: Sequence[str], step: Step) -> Step:
    def discard(limit: int) -> int:
        ids, _ = queue.storage.list_ids(queue.name, State.FAILED, None, limit)
        return len(queue.storage.discard(queue.name, ids)) if ids else 0

    return _bounded(step, discard)


def _bounded(step: Step, act: Callable[[int], int]) -> Step:
    """Act until none is left or the time is over. As many as there were when it began: a job that fails again at once
    would otherwise be put back for ever."""
    done, left = step.done, step.left
    deadline = time.monotonic() + STEP_SECONDS
    while left > 0:
        count = act(min(left, MAX_BATCH))
        done, left = done + count, left - count
        if not count:
            left = 0
        if time.monotonic() >= deadline:
            break
    return Step(done, left)


ACTIONS: dict[str, Action] = {
    "pause": Action("Pause", "queue", "", False, _pause),
    "resume": Action("Resume", "queue", "", False, _resume),
    "cancel": Action(
        "Cancel job", "jobs", "A job that has not started is removed; the handler of one that runs is asked to stop.",
        True, _cancel,
    ),
    "retry": Action("Retry", "jobs", "", False, _retry),
    "discard": Action("Discard", "jobs", "They are removed for good, with their errors.", True, _discard),
    "retry-all": Action(
        "Retry all", "all", "They go to the end of the queue, with all their attempts.", False, _retry_all
    ),
    "discard-all": Action("Discard all", "all", "They are removed for good, with their errors.", True, _discard_all),
}  # fmt: skip


#: What is told afterwards, by the words that an address may carry: nobody can put a text of their own there.
_TOLD = {
    "pause": "The queue is paused: running jobs go on, new ones are accepted.",
    "resume": "The queue hands out jobs again.",
    "cancelled": "The job was cancelled.",
    "cancelling": "The job runs: its handler was asked to stop.",
    "processing": "The job runs and was left alone.",
    "completed": "The job has completed: there was nothing to cancel.",
    "failed": "The job has failed: there was nothing to cancel.",
    "not_found": "There is no such job (any more).",
}
_COUNTED = {"retry": "put back into the queue", "discard": "discarded"}


def told(query: Mapping[str, str]) -> str | None:
    """What became of the action that led to this page; None when none did."""
    word, count = query.get("told", ""), query.get("count", "")
    verb = _COUNTED.get(word)
    if verb is None:
        return _TOLD.get(word)
    if not (count.isascii() and count.isdigit() and len(count) < 16):
        return None
    number = int(count)
    jobs = "dead letter was" if number == 1 else "dead letters were"
    return f"{number:,} {jobs} {verb}." if number else f"Nothing was {verb}: it is no dead letter any more."


def result_of(name: str, step: Step) -> dict[str, object]:
    """The part of an address that :func:`told` reads."""
    if name == "cancel":
        return {"told": step.status}
    if ACTIONS[name].takes == "queue":
        return {"told": name}
    return {"told": name.removesuffix("-all"), "count": step.done}


def find_action(name: str) -> Action:
    """Raises Problem(400)."""
    if name not in ACTIONS:
        raise Problem(400, "action-unknown", f"there is no action {name!r:.40}")
    return ACTIONS[name]
