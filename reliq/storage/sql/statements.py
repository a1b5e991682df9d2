"""The SQL files, loaded once, with the rules of ``lifecycle`` filled in.

``{may:cancel}`` becomes the condition on ``state`` under which a cancel is allowed. ``{live}`` is the one
place that says which stored records still count, ``{unpurged}`` the part of it that a
purge decides; both speak of a row of ``job``, in a trigger or in a question.
"""

from __future__ import annotations

import re
import sqlite3
from importlib.resources import files

from ...errors import StorageError
from ...lifecycle import Command, sources
from ..base import HISTORY, MAX_CLAIM_BYTES, TOMBSTONE_MS

#: UPDATE..FROM, UPSERT without a target and the JSON functions are all there from here on.
MINIMUM = (3, 37, 0)

#: Views over which a whole transition runs as one INSERT, parts before those that use them.
TRANSITIONS = (
    "remove", "sweep", "recover", "enqueue", "claim", "settle", "extend", "leave", "cancel", "reap", "wait",
    "update_ttl", "revive", "discard", "purge", "pause",
)  # fmt: skip

#: A message up to this length lies in its job's row, which every move writes anew.
INLINE_BYTES = 256

# A purge raises the queue's epoch; a job that runs is not touched by it, and gets the
# present epoch with its next move.
_UNPURGED = "(job.state = 'processing' OR job.epoch = (SELECT epoch FROM queue WHERE qid = NEW.qid))"
_MACROS = {
    "unpurged": _UNPURGED,
    "live": f"({_UNPURGED} AND (job.expires_ms IS NULL OR job.expires_ms > NEW.now_ms))",
    # By the system's clock: listening is no part of any job's fate.
    "clock_s": "CAST(strftime('%s', 'now') AS INTEGER)",
    "listened": (
        "EXISTS (SELECT 1 FROM queue WHERE qid = NEW.qid AND listen_until_s > 0"
        " AND listen_until_s > CAST(strftime('%s', 'now') AS INTEGER))"
    ),
    "overdue": (
        "(EXISTS (SELECT 1 FROM job WHERE qid = NEW.qid AND epoch = (SELECT epoch FROM queue WHERE qid = NEW.qid)"
        " AND sweep_ms <= NEW.now_ms)"
        " OR EXISTS (SELECT 1 FROM tombstone WHERE qid = NEW.qid AND until_ms <= NEW.now_ms)"
        " OR EXISTS (SELECT 1 FROM queue WHERE qid = NEW.qid AND has_upkeep))"
    ),
    "tombstone_ms": str(TOMBSTONE_MS),
    "history": str(HISTORY),
    "inline_bytes": str(INLINE_BYTES),
    "max_claim_bytes": str(MAX_CLAIM_BYTES),
}


def load(name: str) -> str:
    """The text of ``<name>.sql`` with every macro filled in."""
    text = files(__package__).joinpath(f"{name}.sql").read_text("utf-8")
    return re.sub(r"\{(may:)?(\w+)\}", _fill, text)


def _fill(match: re.Match[str]) -> str:
    if match[1]:
        states = [f"'{state}'" for state in sources(Command(match[2]))]
        # A partial index is found by `=`, not by an IN of one.
        return f"state = {states[0]}" if len(states) == 1 else f"state IN ({', '.join(states)})"
    return _MACROS[match[2]]


def _questions(file: str) -> dict[str, str]:
    sections = re.split(r"^-- name: (\w+)\n", load(file), flags=re.MULTILINE)[1:]
    return {
        name: text.replace("NEW.", ":").strip().removesuffix(";")
        for name, text in zip(sections[::2], sections[1::2], strict=True)
    }


SCHEMA = load("schema")
READ = _questions("read")
CHECKS = _questions("check")

#: Transitions that may share one statement, each at most once: `INSERT INTO batch (transition, p0, p1, ...)`.
COMBINED = ("enqueue", "claim", "settle", "extend", "wait")
#: The most parameters that one of them has.
BATCH_PARAMETERS = 9


#: Given for a staged number that is missing.
MISSING = -1

_SOURCES = {name: load(name) for name in TRANSITIONS}


def _parameters(transition: str) -> list[str]:
    """What its view takes."""
    view = re.search(rf"CREATE TEMP VIEW {transition} AS\s+SELECT (.*?);", _SOURCES[transition], re.DOTALL)
    return re.findall(r" AS (\w+)", view[1]) if view else []


def _staged(transition: str) -> list[str]:
    """What its staging table takes, after n."""
    table = re.search(rf"CREATE TEMP TABLE {transition}_in \((.*?)\);", _SOURCES[transition], re.DOTALL)
    return re.findall(r"(\w+) (?:INTEGER|TEXT|BLOB)", table[1])[1:] if table else []


#: How a row is staged, by transition, with a place for each of its values. `Write` says what they may be.
ROWS = {
    name: f"(NULL, {', '.join(f'nullif(?, {MISSING})' if column == 'ttl_ms' else '?' for column in columns)})"
    for name in TRANSITIONS
    if (columns := _staged(name))
}


def _alone(transition: str) -> str:
    """One staged row and its transition as one statement: staging it apart costs two more, of 15 us each."""
    parameters, columns = _parameters(transition), _staged(transition)
    row = ROWS[transition]
    for column in columns:
        row = row.replace("?", f"NEW.{column}", 1)
    values = ", ".join(f"NEW.{name}" for name in parameters)
    names = ", ".join(f"0 AS {name}" for name in (*parameters, *columns))
    steps = (
        f"DELETE FROM {transition}_in",  # noqa: S608 (names of our own files)
        f"INSERT INTO {transition}_in VALUES {row}",  # noqa: S608
        f"INSERT INTO {transition} VALUES ({values})",  # noqa: S608
    )
    view = f"{transition}_alone"
    return (
        f"CREATE TEMP VIEW {view} AS SELECT {names};\n"
        f"CREATE TEMP TRIGGER {view}_do INSTEAD OF INSERT ON {view} BEGIN {'; '.join(steps)}; END;"
    )


def _batch() -> str:
    names = [f"p{n}" for n in range(BATCH_PARAMETERS)]
    parts = [f"CREATE TEMP VIEW batch AS SELECT '' AS transition, {', '.join(f'0 AS {name}' for name in names)};"]
    for transition in COMBINED:
        values = ", ".join(f"NEW.{name}" for name in names[: len(_parameters(transition))])
        body = f"INSERT INTO {transition} VALUES ({values});"  # noqa: S608 (names of our own files)
        parts.append(
            f"CREATE TEMP TRIGGER batch_{transition} INSTEAD OF INSERT ON batch WHEN NEW.transition = '{transition}' "
            f"BEGIN {body} END;"
        )
    return "\n".join(parts)


_SCRIPT = "\n".join([*_SOURCES.values(), *map(_alone, ROWS), _batch()])


def install(connection: sqlite3.Connection) -> None:
    """Create the transitions on a connection; they live in its TEMP schema."""
    connection.executescript(_SCRIPT)


def check_version() -> None:
    """Raise StorageError when Python's SQLite is too old."""
    if sqlite3.sqlite_version_info < MINIMUM:
        raise StorageError(
            f"this Python carries SQLite {sqlite3.sqlite_version}; reliq needs {'.'.join(map(str, MINIMUM))} or newer"
        )
