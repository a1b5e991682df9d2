"""One way to break the package."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

_SUITES = {
    ".lua": "tests/contract/test_redis.py::TestRedis",
    ".sql": "tests/contract/test_memory.py::TestMemory",
}


class RottenError(Exception):
    """The text that a mutation replaces is not there, or more than once."""


@dataclass(frozen=True, slots=True)
class Mutation:
    """In ``file`` (below ``reliq/``) the one ``old`` becomes ``new``; one of ``tests`` must turn red.

    ``tests`` are names of the storage contract, run on the storage that the file belongs to, or
    node ids where they contain a path. ``name`` is unique.
    """

    name: str
    invariant: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    @property
    def node_ids(self) -> list[str]:
        """The tests as pytest takes them."""
        return [test if "/" in test else f"{_SUITES[Path(self.file).suffix]}::{test}" for test in self.tests]

    def applied(self, text: str) -> str:
        """``text`` of the file, broken. Raises RottenError unless ``old`` occurs exactly once."""
        found = text.count(self.old)
        if found != 1 or self.old == self.new:
            raise RottenError(
                f"{self.name}: the text to replace must occur once in {self.file}, found {found}: {self.old!r}"
            )
        return text.replace(self.old, self.new)
