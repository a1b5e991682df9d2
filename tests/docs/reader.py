"""Somebody who does what a page says, in a directory of their own."""

from __future__ import annotations

import doctest
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from .page import Block

OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
#: No command of the docs takes so long.
LIMIT_SECONDS = 60.0
_EXPORT = re.compile(r"export (\w+)=(.*)$")


class Reader:
    """Runs blocks. ``bin`` holds the commands that a reader has installed; ``replace`` says what stands for what."""

    def __init__(self, directory: Path, name: str, *, bin: Path | None = None, replace: dict[str, str] | None = None):
        self.directory = directory
        self.name = name
        self._replace = replace or {}
        self._bin = bin or Path(sys.executable).parent
        self._environment = {name: value for name, value in os.environ.items() if not name.startswith("RELIQ_")}
        self._environment |= {"PATH": f"{self._bin}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "100", "NO_COLOR": "1"}
        self._globals: dict[str, Any] = {"__name__": "__main__"}
        self._running: list[tuple[str, subprocess.Popen[str]]] = []
        self._runner = doctest.DocTestRunner(verbose=False, optionflags=OPTIONS)
        self.commands = 0
        self.examples = 0

    def __enter__(self) -> Self:
        self._was_in = os.getcwd()
        os.chdir(self.directory)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        os.chdir(self._was_in)
        for _, process in self._running:
            if process.poll() is None:
                process.terminate()
        for command, process in self._running:
            try:
                output, _ = process.communicate(timeout=LIMIT_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
                raise
            if kind is None:
                assert process.returncode in (0, -signal.SIGTERM), f"{self.name}: $ {command}\n{output}"

    def run(self, block: Block) -> None:
        """Do what a block says; an AssertionError tells where the page is wrong."""
        text = block.text
        for word, meant in self._replace.items():
            text = text.replace(word, meant)
        where = f"{self.name}:{block.line + 1}"
        if block.kind == "doctest":
            self._doctest(text, block.line)
        elif block.kind == "console":
            self._console(text, where)
        elif block.caption:
            path = self.directory / block.caption
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            self.examples += 1
        else:
            exec(compile(text, where, "exec", dont_inherit=True), self._globals)
            self.examples += 1

    def _doctest(self, text: str, line: int) -> None:
        test = doctest.DocTestParser().get_doctest(text, self._globals, self.name, self.name, line)
        report: list[str] = []
        result = self._runner.run(test, clear_globs=False, out=report.append)
        self._globals = test.globs
        assert not result.failed, "".join(report)
        self.examples += result.attempted

    def _console(self, text: str, where: str) -> None:
        steps = re.split(r"^\$ ", text, flags=re.MULTILINE)
        assert not steps[0], f"{where}: a console block begins with $"
        for step in steps[1:]:
            # A command goes on behind a backslash, and to the end of a here-document or a quoted text.
            lines = step.splitlines()
            count = 1
            while lines[count - 1].endswith("\\"):
                count += 1
            self._command("\n".join(lines[:count]), "\n".join(lines[count:]).strip(), where)

    def _command(self, command: str, expected: str, where: str) -> None:
        self.commands += 1
        if found := _EXPORT.match(command):
            value = subprocess.check_output(["bash", "-c", f"echo {found[2]}"], cwd=self.directory, text=True)
            self._environment[found[1]] = value.strip()
            return
        if command.endswith("&"):
            words = shlex.split(command.removesuffix("&"))
            process = subprocess.Popen(
                words, cwd=self.directory, env=self._environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                text=True, executable=self._found(words[0]),
            )  # fmt: skip
            self._running.append((command, process))
            return
        done = subprocess.run(
            ["bash", "-c", command], cwd=self.directory, env=self._environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT_SECONDS,
        )  # fmt: skip
        assert done.returncode == 0, f"{where}: $ {command}\n{done.stdout}"
        is_same = not expected or doctest.OutputChecker().check_output(expected + "\n", done.stdout, OPTIONS)
        assert is_same, f"{where}: $ {command}\nexpected:\n{expected}\ngot:\n{done.stdout}"

    def _found(self, word: str) -> str:
        return str(self._bin / word) if (self._bin / word).exists() else word
