"""What a dashboard may change, and what it tells afterwards."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from reliq import Job, Queue, WorkerPool
from reliq.dashboard import actions

from .conftest import run_all
from .support import Browser, Page


def _dead(queue: Queue, count: int) -> None:
    queue.enqueue_many([(f"job-{n}", {"fail": "no"}) for n in range(count)])
    run_all(queue)
    assert queue.counts()["failed"] == count


def _notice(page: Page) -> str:
    [notice] = [element for element in page.all("p") if element["class"] == "notice"]
    return notice.content


def test_pause_and_resume(queue: Queue, actor: Browser) -> None:
    queue.enqueue("a", 1)
    page = actor.follow(actor.submit(actor.page("/jobs?queue=emails").form("Pause")))
    assert queue.is_paused
    assert "paused" in _notice(page)
    page = actor.follow(actor.submit(page.form("Resume")))
    assert not queue.is_paused
    assert "again" in _notice(page)


def test_cancel_asks_first(queue: Queue, actor: Browser) -> None:
    queue.enqueue("a", 1)
    question = actor.submit(actor.page("/job?queue=emails&id=a").form("Cancel job")).page
    assert queue.counts()["queued"] == 1, "asking changes nothing"
    assert question.links["No, go back"].startswith("/ops/queues/job?")
    page = actor.follow(actor.submit(question.form("Yes, cancel")))
    assert _notice(page) == "The job was cancelled."
    assert queue.get_status("a") is None


def test_cancel_asks_the_handler_of_a_running_job_to_stop(queue: Queue, actor: Browser) -> None:
    started, reasons = threading.Event(), list[Any]()

    @queue.handler
    def wait(job: Job) -> None:
        started.set()
        job.signal.wait(20)
        reasons.append(job.signal.reason)

    queue.enqueue("a", 1)
    pool = WorkerPool(queue, threads=1).start()
    try:
        assert started.wait(20)
        question = actor.submit(actor.page("/job?queue=emails&id=a").form("Cancel job")).page
        page = actor.follow(actor.submit(question.form("Yes, cancel")))
        assert "asked to stop" in _notice(page)
    finally:
        pool.stop()
    assert reasons == ["cancelled"]


def test_finished_jobs_have_no_cancel(queue: Queue, actor: Browser) -> None:
    queue.enqueue("a", 1)
    form = actor.page("/job?queue=emails&id=a").form("Cancel job")
    run_all(queue)
    assert actor.page("/job?queue=emails&id=a").forms == []
    page = actor.follow(actor.submit(form, confirm="yes"))
    assert _notice(page) == "The job has completed: there was nothing to cancel."


def test_one_dead_letter_is_retried_from_its_page(queue: Queue, actor: Browser) -> None:
    _dead(queue, 2)
    form = actor.page("/job?queue=emails&id=job-1").form("Retry")
    page = actor.follow(actor.submit(form))
    assert _notice(page) == "1 dead letter was put back into the queue."
    assert queue.counts() | {"queued": 1, "failed": 1} == queue.counts()
    assert "no dead letter any more" in _notice(actor.follow(actor.submit(form))), "the same form again"
    assert queue.counts()["queued"] == 1


def test_one_dead_letter_is_discarded_once_that_is_meant(queue: Queue, actor: Browser) -> None:
    _dead(queue, 2)
    question = actor.submit(actor.page("/job?queue=emails&id=job-1").form("Discard")).page
    assert queue.counts()["failed"] == 2
    assert question.one("h1").content == "Discard 1 dead letter?"
    page = actor.follow(actor.submit(question.form("Yes, discard")))
    assert _notice(page) == "1 dead letter was discarded."
    assert page.ids == ["job-0"]


def test_the_chosen_ones_are_retried_or_discarded(queue: Queue, actor: Browser) -> None:
    _dead(queue, 5)
    form = actor.page("/dead").form("Retry chosen")
    page = actor.follow(actor.submit(form, action="retry", id="job-0"))
    assert sorted(page.ids) == ["job-1", "job-2", "job-3", "job-4"], "back to the list"
    queue.cancel("job-0")
    _dead(queue, 5)
    page = actor.follow(actor.submit(form, action="retry", id=["job-0", "job-4"]))
    assert _notice(page) == "2 dead letters were put back into the queue."
    question = actor.submit(form, action="discard", id=["job-1", "job-4"]).page
    assert question.one("h1").content == "Discard 2 dead letters?"
    page = actor.follow(actor.submit(question.form("Yes, discard"), id=["job-1", "job-4"]))
    assert _notice(page) == "1 dead letter was discarded.", "job-4 was none any more"
    assert sorted(page.ids) == ["job-2", "job-3"]
    assert queue.get_status("job-4") is not None


@pytest.mark.parametrize(("button", "state"), [("Retry all", "queued"), ("Discard all", None)])
def test_all_go_in_bounded_steps(
    queue: Queue, actor: Browser, monkeypatch: pytest.MonkeyPatch, button: str, state: str | None
) -> None:
    monkeypatch.setattr(actions, "STEP_SECONDS", 0.0)  # one batch each
    monkeypatch.setattr(actions, "MAX_BATCH", 10)
    _dead(queue, 23)
    answer = actor.submit(actor.page("/dead").form(button))
    verb = button.removesuffix(" all")
    assert answer.page.one("h1").content == f"{verb} 23 dead letters?"
    assert queue.counts()["failed"] == 23
    answer = actor.submit(answer.page.form(f"Yes, {verb.lower()}"))
    for done, left in ((10, 13), (20, 3)):
        page = answer.page
        assert page.one("h1").content == f"{button}: {done} done, {left} to go"
        assert queue.counts()["failed"] == left
        answer = actor.submit(page.form("Go on"))
    assert _notice(actor.follow(answer)).startswith("23 dead letters were ")
    assert queue.counts()["failed"] == 0
    assert state is None or queue.counts()[state] == 23


def test_retry_all_ends_with_jobs_that_fail_again_at_once(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as there were: those that come back meanwhile are not retried for ever."""
    _dead(queue, 3)
    revived: list[str] = []
    revive = queue.storage.revive

    def and_fail_again(name: str, ids: Any, *, limit: int = 1_000) -> list[str]:
        found = revive(name, ids, limit=1)
        revived.extend(found)
        run_all(queue)
        return found

    monkeypatch.setattr(queue.storage, "revive", and_fail_again)
    step = actions.ACTIONS["retry-all"].run(queue, (), actions.Step(0, 3))
    assert (step.done, step.left, len(revived)) == (3, 0, 3)
    assert queue.counts()["failed"] == 3


def test_who_did_what_is_logged(queue: Queue, actor: Browser, caplog: pytest.LogCaptureFixture) -> None:
    queue.enqueue("a", 1)
    with caplog.at_level("INFO", "reliq.dashboard"):
        actor.submit(actor.page("/jobs?queue=emails").form("Pause"))
    assert [record.getMessage() for record in caplog.records] == ["somebody: pause on queue 'emails', as a whole"]
