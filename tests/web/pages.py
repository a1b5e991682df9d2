"""The files and commands that a how-to page shows."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

HOWTO = Path(__file__).resolve().parents[2] / "docs" / "howto"
_BLOCK = re.compile(r"^\.\. code-block:: (\w+)\n(?:   :caption: ([^\n]+)\n)?\n((?:(?:   [^\n]*)?\n)+)", re.MULTILINE)


def files(page: str) -> dict[str, str]:
    """The Python files of a page, by their captions."""
    found = {name: textwrap.dedent(text) for kind, name, text in _blocks(page) if kind == "python"}
    assert found, f"{page} shows no files"
    assert "" not in found, f"{page} shows Python without saying where it stands"
    return found


def commands(page: str) -> list[str]:
    """The commands that a page shows."""
    return re.findall(
        r"^ *\$ (.*)$", "\n".join(text for kind, _, text in _blocks(page) if kind == "console"), re.MULTILINE
    )


def _blocks(page: str) -> list[tuple[str, str, str]]:
    text = (HOWTO / page).read_text(encoding="utf-8")
    blocks = _BLOCK.findall(text)
    assert len(blocks) == text.count("code-block::"), f"a block of {page} was not understood"
    return blocks
