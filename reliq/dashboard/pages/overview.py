"""Every queue at a glance."""

from __future__ import annotations

from collections.abc import Sequence

from ...facts import QueueFacts
from ...shown import span
from ..markup import Child, Html, el, html
from ..rates import Rate
from .view import View, number, table

_HEADS = (
    ("Queue", "name"), ("Completed", "bars"), ("Rate", "num"), ("Queued", "num"), ("Oldest waits", "num"),
    ("Running", "num"), ("Later", "num"), ("Retrying", "num"), ("Dead letters", "num"), ("Workers", "num"),
)  # fmt: skip


def overview_page(view: View, facts: Sequence[QueueFacts], rates: Sequence[Rate | None], after: str | None) -> bytes:
    """``after``: the name that the next page begins behind, None on the last one."""
    links = view.links
    content: list[Child] = [el("h1", "Queues")]
    if not facts:
        content.append(el("p", "No queues yet. A queue is here once a job was enqueued to it.", class_="empty"))
        return view.page("", "Queues", content)
    content.append(_totals(facts))
    content.append(table("Queues", _HEADS, (_row(view, fact, rate) for fact, rate in zip(facts, rates, strict=True))))
    if after is not None:
        content.append(el("p", el("a", "More queues", href=links.to("", after=after)), class_="pager"))
    return view.page("", "Queues", content)


def _totals(facts: Sequence[QueueFacts]) -> Html:
    def total(*states: str) -> int:
        return sum(fact.counts.get(state, 0) for fact in facts for state in states)

    waits = max((fact.oldest_wait for fact in facts if fact.oldest_wait is not None), default=None)
    failed = total("failed")
    workers = {worker.worker_id for fact in facts for worker in fact.workers}
    tiles = (
        ("Queued", f"{total('queued'):,}", f"oldest waits {span(waits)}" if waits is not None else "nothing waits", ""),
        ("Running", f"{total('processing'):,}", f"of {sum(w.threads for f in facts for w in f.workers):,} threads", ""),
        ("Retrying", f"{total('failing'):,}", "wait for their next attempt", ""),
        ("Dead letters", f"{failed:,}", "failed for good", "alarm" if failed else ""),
        (
            "Workers",
            f"{len(workers):,}",
            f"serve {sum(bool(fact.workers) for fact in facts):,} queues",
            "" if workers else "alarm",
        ),
    )
    return el(
        "dl",
        (
            el("div", el("dt", name), el("dd", value, class_="value"), el("dd", remark, class_="remark"),
               class_=kind or None)
            for name, value, remark, kind in tiles
        ),
        class_="tiles",
    )  # fmt: skip


def _row(view: View, fact: QueueFacts, rate: Rate | None) -> tuple[Child, ...]:
    links, counts = view.links, fact.counts

    def jobs(*states: str) -> Html:
        page = links.to("jobs", queue=fact.queue, state=states[0] if len(states) == 1 else None)
        return number(sum(counts.get(state, 0) for state in states), page)

    dead = number(counts["failed"], links.to("dead", queue=fact.queue))
    return (
        html(
            el("a", fact.queue, href=links.to("jobs", queue=fact.queue)),
            fact.is_paused and el("span", "paused", class_="badge paused"),
        ),
        chart(rate),
        rate_text(rate),
        jobs("queued"),
        el("span", "–", class_="zero") if fact.oldest_wait is None else el("span", span(fact.oldest_wait)),
        jobs("processing"),
        jobs("scheduled", "waiting"),
        jobs("failing"),
        el("strong", dead, class_="alarm") if counts["failed"] else dead,
        number(len(fact.workers), links.to("workers", queue=fact.queue)),
    )


def rate_text(rate: Rate | None) -> Html:
    """Completed jobs by second or minute, failed ones beside them."""
    if rate is None:
        return el("span", "…", class_="zero", title="being measured")
    over = f"over the last {span(rate.seconds)}"
    return html(
        el("span", _per(rate.completed), class_=None if rate.completed else "zero", title=f"completed, {over}"),
        el("span", f" {_per(rate.failed)} failed", class_="alarm", title=f"failed for good, {over}")
        if rate.failed
        else None,
    )


def _per(value: float) -> str:
    if not value:
        return "0/s"
    if value >= 1:
        return f"{value:,.0f}/s" if value >= 10 else f"{value:.1f}/s"
    return f"{value * 60:,.0f}/min" if value * 60 >= 1 else "<1/min"


def chart(rate: Rate | None) -> Html:
    """Completed jobs of the last five minutes, as bars."""
    history = rate.history if rate is not None else ()
    top = max(history, default=0)
    label = f"completed jobs of the last 5 minutes, at most {top} in 5 s"
    bars = [
        el("rect", x=n * 2, y=24 - height, width=1.5, height=height)
        for n, count in enumerate(history)
        if count and (height := max(1, round(24 * count / top)))
    ]
    base = el("rect", x=0, y=23.5, width=120, height=0.5, class_="base")
    return el("svg", base, bars, viewBox="0 0 120 24", class_="chart", role="img", aria_label=label)
