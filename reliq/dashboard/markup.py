"""HTML that is escaped unless it was made here: every ``str`` is text, only :class:`Html` is markup."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Any

from ..shown import safe

_VOID = frozenset({"br", "input", "link", "meta"})


class Html(str):
    """Markup. Nothing but the functions of this module makes one."""

    __slots__ = ()


#: What may stand in a page: None and False are nothing, an iterable is its items.
Child = str | int | float | None | Iterable["Child"]


def html(*children: Child) -> Html:
    """The children one behind the other; whatever is no :class:`Html` is escaped, control characters made visible."""
    return Html("".join(map(_text, children)))


def el(name: str, /, *children: Child, **attributes: Any) -> Html:
    """An element. In attribute names ``_`` stands for ``-`` and one at the end is dropped (``class_``).

    None and False leave an attribute out, True leaves its value out. Values are escaped, otherwise as they are.
    """
    opened = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{escape(str(value))}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if name in _VOID:
        return Html(f"<{name}{opened}>")
    return Html(f"<{name}{opened}>{html(*children)}</{name}>")


def foreign(text: object, **attributes: Any) -> Html:
    """Text that somebody else wrote: its writing direction ends where it ends."""
    return el("bdi", str(text), **attributes)


def block(text: str, **attributes: Any) -> Html:
    """Lines that somebody else wrote, as they are: tracebacks, payloads. Can be scrolled with the keyboard."""
    return el("pre", el("bdi", Html(escape(safe(text, lines=True)))), tabindex="0", **attributes)


def document(*children: Child, lang: str = "en") -> bytes:
    """A whole page."""
    return ("<!DOCTYPE html>\n" + el("html", *children, lang=lang)).encode()


def _text(child: Child) -> str:
    if child is None or child is False:
        return ""
    if isinstance(child, Html):
        return child
    if isinstance(child, str):
        return escape(safe(child))
    if isinstance(child, int | float):
        return str(child)
    return "".join(map(_text, child))
