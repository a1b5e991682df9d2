"""The first hour, as the pages tell it: a fresh environment, reliq from the tree, the blocks that are marked."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from .page import ROOT, blocks
from .reader import Reader

#: Pages with blocks between ``.. begin: new user`` and ``.. end: new user``.
PAGES = ["docs/tutorial.rst", "docs/tutorial_flask.rst", "docs/tutorial_django.rst"]
LIMIT_SECONDS = 60.0
MOST_LINES = 15
#: What building a package needs of the tree.
SOURCE = ("pyproject.toml", "setup.cfg", "MANIFEST.in", "LICENSE", "README.rst", "CHANGELOG.rst", "reliq")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tree: building in it would leave things behind."""
    copy = tmp_path_factory.mktemp("source")
    for name in SOURCE:
        path = ROOT / name
        if path.is_dir():
            shutil.copytree(path, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(path, copy)
    return copy


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_the_first_job_is_done_in_a_minute(page: str, source: Path, tmp_path: Path) -> None:
    todo = [block for block in blocks(page) if block.is_first_hour and block.kind in ("python", "console")]
    code = [line for block in todo if block.kind == "python" for line in block.text.splitlines() if line.strip()]
    assert 0 < len(code) <= MOST_LINES, "\n".join(code)

    began = time.monotonic()
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    place = tmp_path / "app"
    place.mkdir()
    # The package of the tree stands for the one of that name, with the extras that the page names.
    replace = {'pip install "reliq[': f'pip install -q "{source}[', "pip install reliq": f"pip install -q {source}"}
    with Reader(place, page, bin=venv / "bin", replace=replace) as reader:
        for block in todo:
            reader.run(block)
    took = time.monotonic() - began
    assert reader.commands > 2
    assert took < LIMIT_SECONDS, f"{took:.1f} s"
