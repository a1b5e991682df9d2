"""The Lua transitions: loaded once, the state table of ``lifecycle`` put in, run by their hash."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from importlib import resources

from ...lifecycle import Command, State, sources
from .. import base

#: One letter per state, as records hold it. ``A`` appears in answers only.
LETTERS: dict[State, str] = {
    State.WAITING: "W",
    State.SCHEDULED: "S",
    State.QUEUED: "Q",
    State.PROCESSING: "P",
    State.FAILING: "R",
    State.COMPLETED: "C",
    State.FAILED: "D",
    State.ABSENT: "A",
}
STATES: dict[bytes, State] = {letter.encode(): state for state, letter in LETTERS.items()}
#: One letter per cause, as tombstones hold it.
CAUSES: dict[bytes, str] = {
    b"c": "cancelled",
    b"p": "purged",
    b"x": "expired",
    b"d": "discarded",
    b"r": "replaced",
    b"u": "unknown",
}
#: One letter per event, as messages on the channel hold it.
EVENTS: dict[bytes, str] = {
    b"q": "queued",
    b"s": "scheduled",
    b"w": "waiting",
    b"g": "progress",
    b"p": "processing",
    b"c": "completed",
    b"r": "failing",
    b"d": "failed",
    b"u": "requeued",
    b"x": "cancelled",
    b"X": "cancelling",
    b"t": "stalled",
    b"e": "expired",
    b"k": "discarded",
    b"z": "purged",
}


#: Limits of the contract that scripts name.
LIMITS = {
    name: str(getattr(base, name))
    for name in ("BURST_MS", "HISTORY", "MAX_CASCADE", "MAX_TICKS", "STEADY_MS", "TOMBSTONE_MS")
}

_INCLUDE = re.compile(r"^-- include: (.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Script:
    """One transition: its whole text and the hash by which the server knows it."""

    name: str
    text: str
    sha: str


@cache
def script(name: str) -> Script:
    """The transition ``name``: the prelude, the parts that its first line includes, its own text."""
    body = _text(name)
    first = body.partition("\n")[0]
    parts = first.removeprefix("-- include:").split() if first.startswith("-- include:") else []
    text = "\n".join([_text("prelude"), *(_part(part) for part in parts), body])
    text = _fold_constants(text)
    return Script(name, text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


def _part(name: str) -> str:
    """A part of the library, as a function that makes it when it is first used: most runs need none of it.

    A line ``-- include: names`` in it holds parts of its own, which cost nothing before it is made.
    """
    text = _INCLUDE.sub(lambda line: "\n".join(_part(part) for part in line[1].split()), _text(name))
    return (
        f"local {name}_part\nlocal function {name}()\n"
        f"if not {name}_part then {name}_part = (function()\n{text}\nend)() end\n"
        f"return {name}_part\nend\n"
    )


def _fold_constants(text: str) -> str:
    """Put constants in the place of their names.

    ``local NAME <const> = value``, as later versions of Lua have it, the contract's own limits, and
    ``MAY.<command>``, the letters of the states from which the transition table allows that command.
    """
    declaration = re.compile(r"^local (\w+) <const> = (.+)\n", re.MULTILINE)
    values = LIMITS | dict(declaration.findall(text))
    text = re.sub(r"\b[A-Z][A-Z_]+\b(?!\.)", lambda name: values.get(name[0], name[0]), declaration.sub("", text))
    return re.sub(r"\bMAY\.(\w+)", lambda row: f"'{_letters(Command(row[1]))}'", text)


def _letters(command: Command) -> str:
    return "".join(LETTERS[state] for state in sources(command))


def _text(name: str) -> str:
    return resources.files(__package__).joinpath(f"{name}.lua").read_text("utf-8")
