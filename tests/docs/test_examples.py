"""Every example of the README, of CONTRIBUTING and of the docs runs as it stands."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from reliq.cli.main import make_parser

from ..servers import RedisServer, ServerError
from .page import ROOT, Block, blocks, pages
from .reader import Reader

#: Blocks that no test here runs, by page and language (``""`` is a plain ``::``), with the reason.
NOT_RUN: dict[tuple[str, str], str] = {
    ("README.rst", ""): "installs from the tree and runs the tests: test_new_user.py and .ci/run do that",
    ("CONTRIBUTING.rst", ""): "the whole of the development: .ci/run does that",
    ("docs/howto/deployment.rst", "ini"): "systemd reads it; its command is parsed below",
    ("docs/reference/http.rst", ""): "part of a Django project: tests/http/test_django.py has one",
}
#: Pages whose blocks another test runs: page to that test.
ELSEWHERE: dict[str, str] = {
    **{
        f"docs/coming_from/{name}.rst": "tests/unit/test_docs_tasks.py has its doctests; the rest is the other's"
        for name in ("celery", "dramatiq", "huey", "rq")
    },
    "docs/howto/dashboard.rst": "tests/dashboard/test_mounting.py: in a Flask and a Django application",
    "docs/howto/django.rst": "tests/web/test_django.py: in a project, with the files that it shows",
    "docs/howto/flask.rst": "tests/web/test_flask.py: in an application, with the files that it shows",
}

#: What a page's examples need beside reliq, by the names of modules: the extras.
NEEDS = {
    "docs/howto/metrics.rst": "prometheus_client opentelemetry.trace",
    "docs/howto/schedules.rst": "cronsim",
    "docs/reference/http.rst": "flask",
    "docs/tutorial_django.rst": "django",
    "docs/tutorial_flask.rst": "flask",
}

#: Where a page has its server; here each page that has one gets one of its own.
SERVER = "localhost:6379"
#: Set up as the docs tell, so that the doctor finds nothing.
KEEPS = ("--appendonly", "yes")
RUN = {"doctest", "python", "console"}


@pytest.mark.parametrize("page", [page for page in pages() if page not in ELSEWHERE])
def test_examples(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RELIQ_URL", raising=False)
    for module in NEEDS.get(page, "").split():
        pytest.importorskip(module)
    todo = [block for block in blocks(page) if block.kind in RUN]
    replace = {"$ pip install ": "$ : pip install "}  # it is: test_new_user.py installs anew
    with contextlib.ExitStack() as stack:
        if any(_asks_a_server(block) for block in todo):
            try:
                replace[SERVER] = urlsplit(stack.enter_context(RedisServer(args=KEEPS)).url).netloc
            except ServerError as error:
                if os.environ.get("RELIQ_REQUIRE_REDIS") == "1":
                    raise
                pytest.skip(f"{page} needs a server: {error}")
        reader = stack.enter_context(Reader(tmp_path, page, replace=replace))
        for block in todo:
            reader.run(block)


def _asks_a_server(block: Block) -> bool:
    """Whether the code of a block names it; what stands in prose and comments does not count."""
    lines = block.text.splitlines()
    if block.kind == "doctest":
        lines = [line for line in lines if line.startswith((">>> ", "... "))]
    return any(SERVER in line.partition("  # ")[0] for line in lines)


def test_what_is_not_run_has_its_reason() -> None:
    kinds = {(page, block.kind) for page in pages() if page not in ELSEWHERE for block in blocks(page)}
    left_out = {(page, kind) for page, kind in kinds if kind not in RUN and kind != "text"}
    assert left_out == set(NOT_RUN)
    assert set(ELSEWHERE) <= set(pages())


def test_commands_that_are_not_run_can_be_read() -> None:
    found = [
        command
        for page, kind in NOT_RUN
        for block in blocks(page)
        if block.kind == kind
        for command in re.findall(r"\breliq ([a-z][^&|;#\n]*)", block.text)
    ]
    assert found
    for command in found:
        make_parser().parse_args(shlex.split(command))  # exits for what it refuses


def test_the_pages_are_found() -> None:
    """The control of the tests above: they would pass without any page."""
    assert {"README.rst", "docs/tutorial.rst", "docs/howto/groups.rst"} <= set(pages())
    assert all((ROOT / page).is_file() for page in pages())


@pytest.mark.parametrize(
    "wrong",
    [
        ">>> 1 + 1\n3\n",
        ".. code-block:: python\n\n    raise ValueError\n",
        ".. code-block:: console\n\n    $ echo one\n    two\n",
        ".. code-block:: console\n\n    $ false\n",
        "So::\n\n    $ echo one\n    two\n",
    ],
)
def test_a_wrong_page_fails(wrong: str, tmp_path: Path) -> None:
    (tmp_path / "page.rst").write_text(wrong)
    with pytest.raises((AssertionError, ValueError)), Reader(tmp_path, "page.rst") as reader:
        for block in blocks(str(tmp_path / "page.rst")):
            reader.run(block)
