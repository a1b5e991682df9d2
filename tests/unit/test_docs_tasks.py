"""The pages about tasks and about testing: their examples run as they stand."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

import reliq

DOCS = Path(reliq.__file__).parent.parent / "docs"
LIBRARIES = [DOCS / "coming_from" / f"{name}.rst" for name in ("celery", "dramatiq", "huey", "rq")]
PAGES = [*LIBRARIES, DOCS / "howto/tasks.rst", DOCS / "howto/testing.rst"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_examples(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RELIQ_URL", raising=False)
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    failed, attempted = doctest.testfile(str(page), module_relative=False, optionflags=options)
    assert attempted >= 10
    assert failed == 0


def test_every_page_is_there() -> None:
    assert {page.stem for page in PAGES} >= {"rq", "celery", "dramatiq", "huey", "tasks", "testing"}
