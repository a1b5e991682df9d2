"""Between a button and what it does: the question, how far it is, and why it cannot be."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus

from ..actions import Action, Step
from ..markup import Child, el, foreign
from .view import View


def confirm_page(view: View, name: str, action: Action, queue: str, ids: Sequence[str], count: int, back: str) -> bytes:
    """Ask whether it is meant."""
    what = f"{count:,} dead letter{'' if count == 1 else 's'}" if name != "cancel" else "this job"
    verb = action.button.removesuffix(" all").removesuffix(" job")
    left = count if action.takes == "all" else None
    content: list[Child] = [
        el("h1", f"{verb} {what}?"),
        el("p", "Queue ", el("strong", foreign(queue)), ". ", action.effect),
        el("ul", (el("li", foreign(id), class_="id") for id in ids), class_="chosen") if ids else None,
        el(
            "div",
            el(
                "form", view.fields(name, queue, ids, confirm="yes", left=left),
                el("button", f"Yes, {verb.lower()}", type="submit", class_="danger" if action.is_destructive else None),
                method="post", action=view.links.to("act"),
            ),
            el("a", "No, go back", href=back, class_="button"),
            class_="actions",
        ),
    ]  # fmt: skip
    return view.page("", f"{verb}?", content, is_live=False)


def progress_page(view: View, name: str, action: Action, queue: str, step: Step, back: str) -> bytes:
    """More is left than one request may take; the script goes on by itself."""
    content: list[Child] = [
        el("h1", f"{action.button}: {step.done:,} done, {step.left:,} to go"),
        el("progress", value=step.done, max=step.done + step.left, aria_label=f"{action.button} of {queue}"),
        el(
            "div",
            el(
                "form", view.fields(name, queue, confirm="yes", left=step.left, done=step.done),
                el("button", "Go on", type="submit"),
                method="post", action=view.links.to("act"), data_continue=True,
            ),
            el("a", "Stop here", href=back, class_="button"),
            class_="actions",
        ),
    ]  # fmt: skip
    return view.page("", action.button, content, is_live=False)


def problem_page(view: View, status: int, detail: str) -> bytes:
    """What went wrong."""
    content: list[Child] = [
        el("h1", f"{status} {HTTPStatus(status).phrase}"),
        el("p", detail[:1].upper() + detail[1:] + ".", class_="lead"),
        el("p", el("a", "All queues", href=view.links.root)),
    ]
    return view.page("", HTTPStatus(status).phrase, content, is_live=False)
