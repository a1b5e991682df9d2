"""Dead letters: look through them, try them again, let them go."""

from __future__ import annotations

from collections.abc import Sequence

from ..markup import Child, Html, el
from ..reading import Listing
from .jobs import below, jobs_table, search_form
from .view import View


def dead_page(view: View, counts: Sequence[tuple[str, int]], queue: str | None, listing: Listing, term: str) -> bytes:
    """``counts``: the dead letters of each queue that has some, or is ``queue``, the one whose are listed."""
    content: list[Child] = [
        el("div", el("h1", "Dead letters"), class_="head"),
        el("p", "Jobs that failed for good: attempts used up, or rejected by their handler.", class_="lead"),
    ]  # fmt: skip
    if queue is None:
        return view.page("dead", "Dead letters", content, el("p", "There are none.", class_="empty"))
    tabs = [
        el("a", name, " ", el("span", f"{count:,}", class_="count"), href=view.links.to("dead", queue=name),
           aria_current="page" if name == queue else None)
        for name, count in counts
    ]  # fmt: skip
    can_act = view.token is not None and bool(listing.jobs)
    content += [
        el("nav", tabs, class_="tabs", aria_label="Queues with dead letters"),
        search_form(view, "dead", queue, None, term),
        _bar(view, queue, dict(counts).get(queue, 0)) if can_act else None,
        jobs_table(view, queue, listing.jobs, f"Dead letters of {queue}", with_state=False, can_choose=can_act),
        below(view, "dead", queue, listing, None, term),
    ]
    return view.page("dead", f"Dead letters of {queue}", content)


def _bar(view: View, queue: str, count: int) -> Html:
    chosen = el(
        "form", view.fields(None, queue, back="dead"),
        el("button", "Retry chosen", type="submit", name="action", value="retry"),
        el("button", "Discard chosen", type="submit", name="action", value="discard", class_="danger"),
        method="post", action=view.links.to("act"), id="chosen",
    )  # fmt: skip
    every = [view.form(name, queue) for name in ("retry-all", "discard-all")] if count else None
    box = el("label", el("input", type="checkbox", id="all"), " This page", hidden=True, class_="all")
    return el("div", box, chosen, every, class_="actions")
