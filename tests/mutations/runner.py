"""Runs tests against broken copies of the package."""

from __future__ import annotations

import os
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Self

from tests.servers import RedisServer

from .mutation import Mutation, RottenError

ROOT = Path(__file__).resolve().parents[2]
#: What a copy consists of; the tests come along, so that edits meanwhile do not matter.
_COPIED = ("reliq", "tests", "pyproject.toml")
#: A broken package may hang; none of the selected tests takes nearly as long.
TIMEOUT_S = 60.0
_BASELINE_TIMEOUT_S = 180.0
#: Plugins that a handful of tests has no use for: to load them takes longer than the tests.
_UNUSED = ("cacheprovider", "hypothesispytest", "randomly", "valkey", "xdist")
#: A test that notices says so by an assertion. Any other error means that the mutation broke the program
#: instead of a rule (a typing error in it, say), which proves nothing.
_NOTICED = re.compile(r"^FAILED (?P<test>\S.*?) - (?:assert\b|AssertionError|Failed: )", re.MULTILINE)
_RED = re.compile(r"^(?:FAILED|ERROR) .*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one mutation. ``reason``: the test that noticed, or why it does not count."""

    mutation: Mutation
    noticed: bool
    reason: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Run:
    """One run of pytest; ``code`` None = it took too long."""

    code: int | None
    output: str


class Sandbox:
    """A copy of the package and its tests, with a server of its own. Used by one thread.

    Made in the main thread, because a server ends with the thread that started it.
    """

    def __init__(self, snapshot: Path) -> None:
        self._snapshot = snapshot
        self.root = Path(tempfile.mkdtemp(prefix="reliq-mutation-"))
        copy(snapshot, self.root)
        self._server = RedisServer().start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._server.close()
        shutil.rmtree(self.root, ignore_errors=True)

    def pytest(self, node_ids: Sequence[str], timeout: float, *, keeps_bytecode: bool = False) -> Run:
        """Run tests on the copy as it stands, until the first one fails.

        ``keeps_bytecode``: what is compiled serves later runs. Never of a broken copy: a file that is mended in the
        same second would look unchanged.
        """
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("RELIQ_", "PYTEST_"))}
        environment |= {
            "PYTHONPATH": str(self.root),
            "RELIQ_TEST_REDIS_URL": self._server.url,
            "COLUMNS": "1000",
        }
        environment["PYTHONDONTWRITEBYTECODE"] = "" if keeps_bytecode else "1"
        command = [sys.executable, "-m", "pytest", "-x", "-q", "--tb=no", "-rfE"]
        # Of its own: runs at the same time clear away each other's old ones, and pytest stumbles over what went.
        command += ["--basetemp", str(self.root / "temporary")]
        for plugin in _UNUSED:
            command += ["-p", f"no:{plugin}"]
        process = subprocess.Popen(
            [*command, "-m", "", *node_ids],
            cwd=self.root,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        try:
            output, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            output, _ = process.communicate()
            return Run(None, output)
        return Run(process.returncode, output)

    def try_out(self, mutation: Mutation) -> Verdict:
        """Break the copy, run the tests, mend the copy."""
        began = time.monotonic()
        target = self.root / "reliq" / mutation.file
        text, before = target.read_text("utf-8"), target.stat()
        try:
            target.write_text(mutation.applied(text), "utf-8")
            noticed, reason = judge(self.pytest(mutation.node_ids, TIMEOUT_S))
        except RottenError as error:
            noticed, reason = False, str(error)
        finally:
            target.write_text(text, "utf-8")
            os.utime(target, ns=(before.st_atime_ns, before.st_mtime_ns))  # its bytecode is that of before, too
        return Verdict(mutation, noticed, reason, time.monotonic() - began)


def judge(run: Run) -> tuple[bool, str]:
    """Whether a test noticed, and which one or why that cannot be said."""
    if run.code is None:
        return False, "the tests did not end in time"
    if run.code == 0:
        return False, "no test turned red"
    found = _NOTICED.search(run.output)
    if run.code == 1 and found:
        return True, found["test"]
    red = _RED.search(run.output)
    return False, f"pytest ended with {run.code} without a failed assertion: {red[0] if red else run.output[-400:]}"


def copy(source: Path, target: Path) -> None:
    """Copy what a sandbox consists of."""
    for name in _COPIED:
        if (source / name).is_dir():
            shutil.copytree(source / name, target / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source / name, target / name)


def baseline(sandboxes: Sequence[Sandbox], mutations: Iterable[Mutation]) -> list[str]:
    """Run every selected test once on the whole package; what is red without any mutation."""
    tests = sorted({test for mutation in mutations for test in mutation.node_ids})
    runs: list[Run] = []

    def check(sandbox: Sandbox, part: Sequence[str]) -> None:
        runs.append(sandbox.pytest(part, _BASELINE_TIMEOUT_S, keeps_bytecode=True))

    parts = [tests[number :: len(sandboxes)] for number in range(len(sandboxes))]
    work = [partial(check, sandbox, part) for sandbox, part in zip(sandboxes, parts, strict=True) if part]
    _together(work)
    return [run.output[-4000:] for run in runs if run.code != 0] + ["a run is missing"] * (len(work) - len(runs))


def try_all(
    sandboxes: Sequence[Sandbox], mutations: Iterable[Mutation], tell: Callable[[Verdict], None]
) -> list[Verdict]:
    """Try every mutation, each sandbox in a thread of its own; ``tell`` hears each verdict as it comes."""
    todo: queue.SimpleQueue[Mutation] = queue.SimpleQueue()
    for mutation in mutations:
        todo.put(mutation)
    verdicts: list[Verdict] = []
    lock = threading.Lock()

    def work(sandbox: Sandbox) -> None:
        while True:
            try:
                mutation = todo.get_nowait()
            except queue.Empty:
                return
            verdict = sandbox.try_out(mutation)
            with lock:
                verdicts.append(verdict)
                tell(verdict)

    _together([partial(work, sandbox) for sandbox in sandboxes])
    return verdicts


def _together(functions: Sequence[Callable[[], None]]) -> None:
    # Daemons, so that Ctrl-C ends the whole run.
    threads = [threading.Thread(target=function, daemon=True) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
