"""Workers and what they run."""

from __future__ import annotations

import time
from collections.abc import Sequence

from ..markup import Child, el, foreign, html
from ..reading import Running
from .jobs import job_link
from .view import View, ago, number, table

_HEADS = (("Worker", "name"), ("Queue", ""), ("Threads", "num"), ("In hand", "num"), ("Runs", "error"))
_SHOWN = 10


def workers_page(view: View, running: Sequence[Running], queue: str | None) -> bytes:
    """``queue``: only that one's; None for all."""
    content: list[Child] = [el("h1", "Workers", queue and [" of ", foreign(queue)])]
    if queue:
        content.append(el("p", el("a", "Workers of all queues", href=view.links.to("workers"))))
    if running:
        content.append(table("Workers", _HEADS, (_row(view, worker) for worker in running)))
    else:
        content.append(el("p", "No workers: nothing runs the jobs.", class_="empty"))
    return view.page("workers", "Workers", content)


def _row(view: View, worker: Running) -> tuple[Child, ...]:
    is_late = worker.expires_at < time.time()
    jobs: list[Child] = [
        el("li", job_link(view, worker.queue, job.id), " ", el("span", "for ", ago(job.updated_at), class_="remark"))
        for job in worker.jobs[:_SHOWN]
    ]
    more = worker.processing - min(len(worker.jobs), _SHOWN)
    if more > 0:
        link = view.links.to("jobs", queue=worker.queue, state="processing")
        jobs.append(el("li", el("a", f"{more:,} more", href=link)))
    return (
        html(
            foreign(worker.worker_id), " ", el("span", worker.instance[:8], class_="remark"),
            is_late and el("span", "no heartbeat", class_="badge failed",
                           title="its jobs go back into the queue with the next reap"),
        ),
        el("a", worker.queue, href=view.links.to("jobs", queue=worker.queue)),
        number(worker.threads),
        number(worker.processing),
        el("ul", jobs) if jobs else el("span", "idle", class_="zero"),
    )  # fmt: skip
