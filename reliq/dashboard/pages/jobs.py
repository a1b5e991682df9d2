"""The jobs of a queue by state, and the table of jobs that other pages show too."""

from __future__ import annotations

from collections.abc import Sequence

from ...facts import QueueFacts, limit_remarks
from ...job import JobStatus
from ...lifecycle import STORED
from ...shown import span
from ..markup import Child, Html, el, foreign, html
from ..rates import Rate
from ..reading import Listing
from .overview import chart, rate_text
from .view import View, ago, badge, hidden, table, until

_MAX_ERROR = 160


def jobs_page(view: View, fact: QueueFacts, rate: Rate | None, listing: Listing, state: str | None, term: str) -> bytes:
    """One queue."""
    name = fact.queue
    tabs = [_tab(view, name, None, sum(fact.counts.values()), state)]
    tabs += [_tab(view, name, each.value, fact.counts[each.value], state) for each in STORED]
    content: list[Child] = [
        el(
            "div",
            el("h1", foreign(name), fact.is_paused and el("span", "paused", class_="badge paused")),
            view.form("resume" if fact.is_paused else "pause", name),
            class_="head",
        ),
        _summary(fact, rate),
        el("nav", tabs, class_="tabs", aria_label="States"),
        search_form(view, "jobs", name, state, term),
        jobs_table(view, name, listing.jobs, f"Jobs of {name}", with_state=state is None),
        below(view, "jobs", name, listing, state, term),
    ]
    return view.page("", f"{name}: {state or 'all jobs'}", content)


def _summary(fact: QueueFacts, rate: Rate | None) -> Html:
    remarks = [
        None if fact.oldest_wait is None else f"oldest waits {span(fact.oldest_wait)}",
        f"{len(fact.workers)} worker{'' if len(fact.workers) == 1 else 's'}",
        *limit_remarks(fact.limits),
    ]
    texts = [el("span", remark) for remark in remarks if remark]
    return el("p", chart(rate), el("span", rate_text(rate), " completed"), texts, class_="summary")


def _tab(view: View, queue: str, state: str | None, count: int, current: str | None) -> Html:
    return el(
        "a", state or "all", " ", el("span", f"{count:,}", class_="count"),
        href=view.links.to("jobs", queue=queue, state=state), aria_current="page" if state == current else None,
        class_="alarm" if state == "failed" and count else None,
    )  # fmt: skip


def search_form(view: View, page: str, queue: str, state: str | None, term: str) -> Html:
    """Search within a listing."""
    return el(
        "form", hidden("queue", queue), state and hidden("state", state),
        el("label", "Search by id or error", for_="q", class_="hidden"),
        el("input", type="search", id="q", name="q", value=term, placeholder="Search by id or error", maxlength=512),
        el("button", "Search", type="submit"),
        term and el("a", "Clear", href=view.links.to(page, queue=queue, state=state)),
        method="get", action=view.links.to(page), role="search", class_="search",
    )  # fmt: skip


def below(view: View, page: str, queue: str, listing: Listing, state: str | None, term: str) -> Html:
    """Where a listing goes on, or that there is nothing."""
    asked = {"queue": queue, "state": state, "q": term or None}
    parts: list[Child] = []
    if term:
        parts.append(el("span", f"{len(listing.jobs):,} found, {listing.searched:,} jobs searched"))
    elif not listing.jobs:
        parts.append(el("span", "No jobs here.", class_="empty"))
    if "cursor" in view.query:
        parts.append(el("a", "First page", href=view.links.to(page, **asked)))
    if listing.cursor is not None:
        text = "Search on" if term else "Next page"
        parts.append(el("a", text, href=view.links.to(page, **asked, cursor=listing.cursor), rel="next"))
    return el("p", parts, class_="pager")


def jobs_table(
    view: View,
    queue: str,
    jobs: Sequence[JobStatus],
    caption: str,
    *,
    with_state: bool = True,
    can_choose: bool = False,
) -> Html | None:
    """Jobs, one a row, without columns that none of them needs. ``can_choose``: with boxes of the form ``chosen``."""
    if not jobs:
        return None
    columns: list[tuple[str, str, list[Child]]] = [
        ("Id", "name", [job_link(view, queue, job.id) for job in jobs]),
        ("State", "", [_state(job) for job in jobs]),
        ("Attempts", "num", [_attempts(job) for job in jobs]),
        ("Age", "num", [ago(job.created_at) for job in jobs]),
        ("In state for", "num", [ago(job.updated_at) for job in jobs]),
        ("Priority", "num", [job.priority for job in jobs]),
        ("Group", "", [job.group and foreign(job.group) for job in jobs]),
        ("Due in", "num", [None if job.due_at is None else until(job.due_at) for job in jobs]),
        ("Worker", "", [job.worker_id and foreign(job.worker_id) for job in jobs]),
        ("Last error", "error", [job.error and foreign(_short(job.error)) for job in jobs]),
    ]
    needed = {
        "State": with_state or any(job.cancel_requested for job in jobs),
        "Priority": any(job.priority for job in jobs),
        "Group": any(job.group for job in jobs),
        "Due in": any(job.due_at for job in jobs),
        "Worker": any(job.worker_id for job in jobs),
        "Last error": any(job.errors for job in jobs),
    }
    columns = [column for column in columns if needed.get(column[0], True)]
    if can_choose:
        boxes: list[Child] = [
            el("input", type="checkbox", name="id", value=job.id, form="chosen", aria_label=f"Choose {job.id}")
            for job in jobs
        ]
        columns.insert(0, ("Choose", "box", boxes))
    rows = zip(*(cells for _, _, cells in columns), strict=True)
    return table(caption, [(head, kind) for head, kind, _ in columns], rows)


def job_link(view: View, queue: str, id: str) -> Html:
    """A job's id, leading to its page."""
    return el("a", foreign(id), href=view.links.to("job", queue=queue, id=id), class_="id")


def _state(job: JobStatus) -> Html:
    return html(badge(job.state), job.cancel_requested and " (cancelling)")


def _attempts(job: JobStatus) -> Child:
    return (
        el("span", "∞", title="persistent: runs without end")
        if job.persistent
        else f"{job.attempts}/{job.max_attempts}"
    )


def _short(text: str) -> str:
    return text if len(text) <= _MAX_ERROR else f"{text[: _MAX_ERROR - 1]}…"
