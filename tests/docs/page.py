"""The examples of a page, in the order in which a reader meets them.

``>>>``
    A doctest. One page is one session.
``.. code-block:: python``
    With ``:caption: name.py`` a file of that name in the reader's directory; without, it is executed in the session.
``.. code-block:: console``
    Each ``$ line`` is a command in the reader's directory, what follows is its output (``...`` stands for anything).
    A command that ends in ``&`` goes on until the page ends. ``::`` blocks that begin with ``$`` are the same.
``.. code-block:: text``
    Pictures and output; no example.

Everything else is a block that no test runs: :data:`tests.docs.test_examples.NOT_RUN` says why.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
_DIRECTIVE = re.compile(r"( *)\.\. code-block::(?: +(\S+))?$")
_OPTION = re.compile(r" *:(\w+): *(.*)$")
_MARK = re.compile(r"\.\. (begin|end): new user$")


@dataclass(frozen=True, slots=True)
class Block:
    """A piece of a page. ``kind`` is a language, ``doctest`` for the text between blocks, or ``""`` for ``::``."""

    kind: str
    text: str
    line: int
    caption: str = ""
    #: Whether it belongs to what a new user does first.
    is_first_hour: bool = False


def pages() -> list[str]:
    """Every text that has examples, by its path in the tree."""
    found = (path.relative_to(ROOT) for path in (ROOT / "docs").rglob("*.rst") if "_build" not in path.parts)
    return ["README.rst", "CONTRIBUTING.rst", *sorted(str(path) for path in found)]


def blocks(page: str) -> list[Block]:
    """The blocks of a page in order."""
    return list(_blocks((ROOT / page).read_text(encoding="utf-8").splitlines()))


def _blocks(lines: list[str]) -> Iterator[Block]:
    n = start = 0
    is_first_hour = False
    while n < len(lines):
        found, mark = _DIRECTIVE.match(lines[n]), _MARK.match(lines[n])
        if mark:
            is_first_hour = mark[1] == "begin"
        is_literal = not found and lines[n].endswith("::") and not lines[n].lstrip().startswith("..")
        if not found and not is_literal:
            n += 1
            continue
        yield Block("doctest", "\n".join(lines[start:n]) + "\n", start)
        begin = n
        indent = len(lines[n]) - len(lines[n].lstrip())
        n += 1
        caption = ""
        while found and n < len(lines) and (option := _OPTION.match(lines[n])):
            caption = option[2] if option[1] == "caption" else caption
            n += 1
        body = []
        while n < len(lines) and (not lines[n].strip() or len(lines[n]) - len(lines[n].lstrip()) > indent):
            body.append(lines[n])
            n += 1
        start = n
        text = textwrap.dedent("\n".join(body)).strip("\n") + "\n"
        kind = found[2] or "" if found else "console" if text.startswith("$ ") else ""
        yield Block(kind, text, begin, caption, is_first_hour)
    yield Block("doctest", "\n".join(lines[start:]) + "\n", start)
