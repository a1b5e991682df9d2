"""What every page is made with: the request as a page sees it, the frame around it, its small parts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ...shown import age, left, stamp
from ..actions import ACTIONS
from ..links import Links
from ..markup import Child, Html, document, el, foreign

_NAVIGATION = (("", "Queues"), ("dead", "Dead letters"), ("workers", "Workers"))


@dataclass(frozen=True, slots=True)
class View:
    """Where links go, what the address asked, and the token of forms; no token, no forms. ``mode`` says so."""

    links: Links
    query: Mapping[str, str]
    token: str | None
    show_payloads: bool
    mode: str = ""
    user: str = ""
    told: str | None = None

    def page(self, place: str, title: str, *content: Child, is_live: bool = True) -> bytes:
        """A whole page; ``place`` is the entry of the navigation it belongs to."""
        links = self.links
        navigation = [
            el("a", text, href=links.to(path), aria_current="page" if path == place else None)
            for path, text in _NAVIGATION
        ]
        live = el(
            "button", el("span", class_="dot", aria_hidden="true"), el("span", "Live"), type="button", id="live",
            class_="live", aria_pressed="false", hidden=True, title="Refresh this page by itself every few seconds",
        )  # fmt: skip
        return document(
            el(
                "head",
                el("meta", charset="utf-8"),
                el("meta", name="viewport", content="width=device-width, initial-scale=1"),
                el("meta", name="color-scheme", content="light dark"),
                el("meta", name="robots", content="noindex"),
                el("title", f"{title} · reliq"),
                el("link", rel="icon", type="image/svg+xml", href=links.asset("icon.svg")),
                el("link", rel="stylesheet", href=links.asset("dashboard.css")),
                el("script", src=links.asset("dashboard.js"), defer=True),
            ),
            el(
                "body",
                el("a", "Skip to the content", href="#content", class_="skip"),
                el(
                    "header",
                    el(
                        "div",
                        el("a", el("span", class_="mark", aria_hidden="true"), "reliq", href=links.root,
                           class_="brand"),
                        el("nav", navigation, aria_label="Main"),
                        live if is_live else None,
                        class_="bar",
                    ),
                ),
                el(
                    "main",
                    el("div", self.told and el("p", self.told, class_="notice"), role="status", id="told"),
                    content,
                    id="content",
                    tabindex="-1",
                    data_live=is_live,
                ),
                el(
                    "footer",
                    el("p", self.mode, self.user and [" · signed in as ", foreign(self.user)]),
                    el("p", "", id="trouble", role="status"),
                ),
            ),
        )  # fmt: skip

    def form(self, action: str, queue: str, ids: Iterable[str] = (), **more: object) -> Html | None:
        """A button that asks for an action; nothing where none is allowed."""
        if self.token is None:
            return None
        known = ACTIONS[action]
        return el(
            "form", self.fields(action, queue, ids, **more),
            el("button", known.button, type="submit", class_="danger" if known.is_destructive else None),
            method="post", action=self.links.to("act"),
        )  # fmt: skip

    def fields(self, action: str | None, queue: str, ids: Iterable[str] = (), **more: object) -> list[Html]:
        """What such a form carries."""
        named = {"token": self.token, "action": action, "queue": queue, **more}
        return [
            *(hidden(name, value) for name, value in named.items() if value is not None),
            *(hidden("id", id) for id in ids),
        ]


def hidden(name: str, value: object) -> Html:
    """A field that nobody sees."""
    return el("input", type="hidden", name=name, value=value)


def badge(state: str) -> Html:
    """A state, by its name and a colour."""
    return el("span", state, class_=f"badge {state}")


def ago(at: float) -> Html:
    """How long ago; the point in time on hovering."""
    return el("time", age(at), title=stamp(at))


def until(at: float) -> Html:
    """How long until then."""
    return el("time", left(at), title=stamp(at))


def number(value: int, link: str | None = None) -> Html:
    """A count; zero is quiet, another may lead somewhere."""
    text = f"{value:,}"
    if not value:
        return el("span", text, class_="zero")
    return el("a", text, href=link) if link else el("span", text)


def table(caption: str, heads: Iterable[tuple[str, str]], rows: Iterable[Iterable[Child]]) -> Html:
    """A table. ``heads``: (text, class of the column); on narrow screens each row becomes a card.

    The roles are those that the elements have by themselves: a table laid out as cards would lose them.
    """
    heads = list(heads)
    return el(
        "div",
        el(
            "table",
            el("caption", caption),
            el("thead", el("tr", (el("th", text, scope="col", role="columnheader", class_=kind or None)
                                  for text, kind in heads), role="row"), role="rowgroup"),
            el(
                "tbody",
                (
                    el("tr", (
                        el("td", cell, role="cell", class_=kind or None, data_label=text or None)
                        for cell, (text, kind) in zip(row, heads, strict=True)
                    ), role="row")
                    for row in rows
                ),
                role="rowgroup",
            ),
            role="table",
        ),
        class_="table",
    )  # fmt: skip
