"""One job with its history."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from ...job import AttemptError, JobStatus
from ...lifecycle import FINISHED
from ...shown import plain
from ..markup import Child, Html, block, el, foreign, html
from .jobs import job_link
from .view import View, ago, badge, until

_MAX_VALUE = 64 * 1024


def job_page(view: View, queue: str, id: str, job: JobStatus | None) -> bytes:
    """``job`` None: there is none of this id."""
    place = el("p", el("a", queue, href=view.links.to("jobs", queue=queue)), " / job", class_="crumbs")
    if job is None:
        content: list[Child] = [
            place,
            el("h1", foreign(id)),
            el("p", "There is no such job: it was never enqueued, was cancelled or discarded, or its TTL has ended.",
               class_="empty"),
        ]  # fmt: skip
        return view.page("", "no such job", content)
    head = el(
        "div",
        el("h1", foreign(job.id), " ", badge(job.state),
           job.cancel_requested and el("span", "cancelling", class_="badge")),
        _actions(view, job),
        class_="head",
    )  # fmt: skip
    facts = [pair for name, value in _details(view, job) if value is not None
             for pair in (el("dt", name), el("dd", value))]  # fmt: skip
    content = [place, head, el("dl", facts, class_="facts"), _errors(job), _values(view, job)]
    return view.page("", job.id, content)


def _actions(view: View, job: JobStatus) -> Html | None:
    if view.token is None:
        return None
    names = ("retry", "discard") if job.state == "failed" else () if job.state in FINISHED else ("cancel",)
    return el("div", (view.form(name, job.queue, [job.id]) for name in names), class_="actions") if names else None


def _details(view: View, job: JobStatus) -> Iterable[tuple[str, Child]]:
    yield "Queue", el("a", job.queue, href=view.links.to("jobs", queue=job.queue))
    yield "Attempts", "without end (persistent)" if job.persistent else f"{job.attempts} of {job.max_attempts}"
    yield "Created", html(ago(job.created_at), " ago")
    yield "Changed", html(ago(job.updated_at), " ago")
    yield "Due", None if job.due_at is None else html("in ", until(job.due_at))
    yield "Expires", None if job.expires_at is None else html("in ", until(job.expires_at))
    yield "Priority", job.priority or None
    yield "Worker", job.worker_id and foreign(job.worker_id)
    yield "Group", None if job.group is None else html(foreign(job.group), f", sequence {job.sequence}")
    yield "After", [html(" " if n else "", job_link(view, job.queue, id)) for n, id in enumerate(job.after)] or None
    yield "Progress", None if job.progress is None else block(_json(job.progress))
    headers = [el("li", foreign(name), ": ", foreign(value)) for name, value in job.headers.items()]
    yield "Headers", el("ul", headers) if headers else None


def _errors(job: JobStatus) -> Html | None:
    if not job.errors:
        return None
    newest = len(job.errors) - 1
    return el(
        "section",
        el("h2", "Failed attempts", id="attempts"),
        el("ol", (el("li", _error(error, is_open=n == newest)) for n, error in enumerate(job.errors)),
           class_="attempts"),
        aria_labelledby="attempts",
    )  # fmt: skip


def _error(error: AttemptError, *, is_open: bool) -> Html:
    where = [" on ", foreign(error.worker_id)] if error.worker_id else None
    head = html(
        el("p", el("strong", foreign(error.error_type)), ": ", foreign(error.message), class_="message"),
        el("p", f"Attempt {error.attempt}, ", ago(error.at), " ago", where, class_="remark"),
    )
    if not error.traceback:
        return head
    trace = block(error.traceback.rstrip(), aria_label=f"Traceback of attempt {error.attempt}", role="region")
    return html(head, el("details", el("summary", "Traceback"), trace, open=is_open))


def _values(view: View, job: JobStatus) -> Child:
    if not view.show_payloads:
        return el("p", "Payload and result are not shown here.", class_="remark")
    values = [("Payload", job.payload)] + ([("Result", job.result)] if job.state == "completed" else [])
    return [
        el("section", el("h2", name, id=name.lower()), block(_json(value), aria_label=name, role="region"),
           aria_labelledby=name.lower())
        for name, value in values
    ]  # fmt: skip


def _json(value: Any) -> str:
    text = json.dumps(plain(value), indent=2, ensure_ascii=False)
    if len(text) <= _MAX_VALUE:
        return text
    return f"{text[:_MAX_VALUE]}\n… cut here: {len(text):,} characters in all"
