"""An environment of its own for each peer: made once for each list of what it needs, then used again."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable
from pathlib import Path

PEERS = Path(__file__).with_name("peers")
_PATIENCE_S = 300.0


class EnvironmentUnavailableError(Exception):
    """It could not be made; says why."""


def python(name: str, say: Callable[[str], None]) -> list[str]:
    """The interpreter of a virtual environment with ``peers/requirements-NAME.txt``."""
    requirements = PEERS / f"requirements-{name}.txt"
    home = _home(name, requirements.read_bytes() + sys.version.encode())
    interpreter = home / "bin" / "python"

    def make() -> None:
        venv.create(home, clear=True, with_pip=True)
        _run([str(interpreter), "-m", "pip", "install", "-q", "-r", str(requirements)], home)

    _once(home, name, make, say)
    return [str(interpreter)]


def node(name: str, say: Callable[[str], None]) -> tuple[list[str], Path]:
    """Node, and a directory with what ``peers/NAME/package.json`` names; a Node in there is preferred.

    The modules of Node are found from where a script lies, so the adapters are copied there.
    """
    package = PEERS / name / "package.json"
    home = _home(name, package.read_bytes())
    npm = shutil.which("npm")
    if npm is None:
        raise EnvironmentUnavailableError("there is no npm on PATH")

    def make() -> None:
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        shutil.copy(package, home)
        _run([npm, "install", "--no-audit", "--no-fund", "--loglevel=error"], home)

    _once(home, name, make, say)
    for script in (PEERS / "adapter.mjs", PEERS / name / f"{name}.mjs"):
        shutil.copy(script, home)
    carried = next(home.glob("node_modules/node-*/bin/node"), None)
    found = str(carried) if carried else shutil.which("node")
    if found is None:
        raise EnvironmentUnavailableError("there is no node on PATH")
    return [found], home


def _home(name: str, needs: bytes) -> Path:
    base = os.environ.get("RELIQ_BENCHMARK_PEERS") or f"{tempfile.gettempdir()}/reliq-benchmark-peers-{os.getuid()}"
    return Path(base) / f"{name}-{hashlib.sha256(needs).hexdigest()[:12]}"


def _once(home: Path, name: str, make: Callable[[], None], say: Callable[[str], None]) -> None:
    complete = home / "complete"
    if complete.exists():
        return
    say(f"{name}: installing into {home}")
    try:
        home.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        make()
    except OSError as error:
        raise EnvironmentUnavailableError(str(error)) from error
    complete.touch()


def _run(command: list[str], directory: Path) -> None:
    try:
        subprocess.run(command, cwd=directory, check=True, capture_output=True, text=True, timeout=_PATIENCE_S)
    except subprocess.CalledProcessError as error:
        lines = (error.stderr or error.stdout or str(error)).strip().splitlines()
        raise EnvironmentUnavailableError(f"{Path(command[0]).name}: {lines[-1] if lines else error}") from error
    except subprocess.TimeoutExpired as error:
        raise EnvironmentUnavailableError(f"{Path(command[0]).name} took longer than {_PATIENCE_S:g} s") from error
