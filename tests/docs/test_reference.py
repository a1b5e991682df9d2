"""The reference has every public name, and the documentation is in the source archive."""

from __future__ import annotations

import re

import pytest

import reliq
import reliq.testing

from .page import ROOT

PUBLIC = [("api", name) for name in reliq.__all__] + [("testing", name) for name in reliq.testing.__all__]


@pytest.mark.parametrize(("page", "name"), PUBLIC)
def test_every_public_name_is_in_the_reference(page: str, name: str) -> None:
    text = (ROOT / "docs" / "reference" / f"{page}.rst").read_text()
    assert re.search(rf"^\.\. (auto)?(class|exception|function|data):: {name}$", text, re.MULTILINE)


def test_every_page_is_in_a_table_of_contents() -> None:
    """Sphinx warns of pages that are in none; this is the control of the globs, which would find nothing if wrong."""
    index = (ROOT / "docs" / "index.rst").read_text()
    for folder in ("howto", "coming_from"):
        assert f"\n    {folder}/*\n" in index
        assert list((ROOT / "docs" / folder).glob("*.rst"))
