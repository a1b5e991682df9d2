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
from ..base import BURST_MS, HISTORY, MAX_BATCH, MAX_CASCADE, MAX_CLAIM_BYTES, MAX_TICKS, STEADY_MS, TOMBSTONE_MS

#: UPDATE..FROM, UPSERT without a target and the JSON functions are all there from here on.
MINIMUM = (3, 37, 0)

#: Views over which a whole transition runs as one INSERT, parts before those that use them.
TRANSITIONS = (
    "pin", "unlink", "advance", "arrive", "doom", "carry", "follow", "remove", "sweep", "recover", "enqueue",
    "enqueue_ties", "claim", "settle", "extend", "leave", "cancel", "reap", "wait", "progress", "update_ttl", "revive",
    "discard", "purge", "pause", "delete_queue", "set_limits", "put_schedule", "move_schedule", "remove_schedule",
)  # fmt: skip

#: A message up to this length lies in its job's row, which every move writes anew.
INLINE_BYTES = 256

#: When a job is due that only another one can let go, in milliseconds: it stands behind all that time lets go.
NEVER_MS = 9_000_000_000_000_000
#: A clock that went back by more than this finds a full bucket.
_BACK_US = 60_000_000
_EPOCH = "(SELECT epoch FROM queue WHERE qid = NEW.qid)"

# The rate limit's bucket, of a row of `limits`. `bucket_us` is when all tokens that were taken have come in again, one
# by one (GCRA): another is there while that is no further ahead than the burst.
_TICK = "((rate_ms * 1000 + rate - 1) / rate)"
_BUCKET = f"iif(bucket_us > NEW.now_ms * 1000 + {BURST_MS * 1000} + {_TICK} + {_BACK_US}, 0, bucket_us)"
_TOKEN = f"({_BUCKET} - max(0, {BURST_MS * 1000} - {_TICK}) - NEW.now_ms * 1000)"

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
    "listening": "listen_until_s > 0 AND listen_until_s > CAST(strftime('%s', 'now') AS INTEGER)",
    # Not a change of state: what a purge takes was told by the purge, and 'ready' only rings.
    "told": "event NOT IN ('purged', 'ready')",
    # By the three indexes in which it can stand.
    "purge_left": (
        f"(EXISTS (SELECT 1 FROM job WHERE qid = NEW.qid AND epoch < {_EPOCH} AND state = 'queued')"  # noqa: S608
        f" OR EXISTS (SELECT 1 FROM job WHERE qid = NEW.qid AND epoch < {_EPOCH} AND due_ms IS NOT NULL)"
        f" OR EXISTS (SELECT 1 FROM job WHERE qid = NEW.qid AND epoch < {_EPOCH} AND sweep_ms IS NOT NULL))"
    ),
    "never": str(NEVER_MS),
    # How many of a group may be out of the line at once.
    "abreast": "(SELECT ifnull(max(group_concurrency), 1) FROM limits WHERE qid = NEW.qid)",
    "persistent": "EXISTS (SELECT 1 FROM tie WHERE tie.key = job.key AND tie.grp = '')",
    "steady": f"iif(NEW.now_ms - updated_ms >= {STEADY_MS}, 0, min(attempts, max_attempts - 1))",
    "tick_us": _TICK,
    "bucket_us": _BUCKET,
    "token_us": _TOKEN,
    "open": f"(max_concurrency IS NULL OR n_processing < max_concurrency) AND (rate IS NULL OR {_TOKEN} <= 0)",
    # Then dedup windows count from acceptance.
    "is_fifo": "(SELECT substr(name, -5) = '.fifo' FROM queue WHERE qid = NEW.qid)",
    "max_batch": str(MAX_BATCH),
    "max_cascade": str(MAX_CASCADE),
    "max_ticks": str(MAX_TICKS),
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
        command = Command(match[2])
        states = [f"'{state}'" for state in sources(command)]
        if "'queued'" in states and command is not Command.CLAIM:
            states.append("'blocked'")  # queued, but not to be claimed
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


def _parameters(transition: str) -> tuple[str, ...]:
    """What its view takes."""
    view = re.search(rf"CREATE TEMP VIEW {transition} AS\s+SELECT (.*?);", _SOURCES[transition], re.DOTALL)
    return tuple(re.findall(r" AS (\w+)", view[1])) if view else ()


def _staged(transition: str) -> tuple[str, ...]:
    """What its staging table takes, after n."""
    table = re.search(rf"CREATE TEMP TABLE {transition}_in \((.*?)\);", _SOURCES[transition], re.DOTALL)
    return tuple(re.findall(r"(\w+) (?:INTEGER|TEXT|BLOB)", table[1])[1:]) if table else ()


#: By transition: what its view takes, and the columns after n of its staging table. Rows may leave out the last ones.
PARAMETERS = {name: _parameters(name) for name in TRANSITIONS}
STAGED = {name: columns for name in TRANSITIONS if (columns := _staged(name))}


def places(transition: str, columns: int) -> str:
    """How the first values of a row are staged: a place for each. `Write` says what they may be."""
    return ", ".join(f"nullif(?, {MISSING})" if column == "ttl_ms" else "?" for column in STAGED[transition][:columns])


def _alone(transition: str) -> str:
    """One staged row and its transition as one statement: staging it apart costs two more, of 15 us each."""
    parameters, columns = PARAMETERS[transition], STAGED[transition]
    row = places(transition, len(columns))
    for column in columns:
        row = row.replace("?", f"NEW.{column}", 1)
    values = ", ".join(f"NEW.{name}" for name in parameters)
    names = ", ".join(f"0 AS {name}" for name in (*parameters, *columns))
    steps = (
        f"DELETE FROM {transition}_in",  # noqa: S608 (names of our own files)
        f"INSERT INTO {transition}_in VALUES (NULL, {row})",  # noqa: S608
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
        values = ", ".join(f"NEW.{name}" for name in names[: len(PARAMETERS[transition])])
        body = f"INSERT INTO {transition} VALUES ({values});"  # noqa: S608 (names of our own files)
        parts.append(
            f"CREATE TEMP TRIGGER batch_{transition} INSTEAD OF INSERT ON batch WHEN NEW.transition = '{transition}' "
            f"BEGIN {body} END;"
        )
    return "\n".join(parts)


_SCRIPT = "\n".join([*_SOURCES.values(), *map(_alone, STAGED), _batch()])


def install(connection: sqlite3.Connection) -> None:
    """Create the transitions on a connection; they live in its TEMP schema."""
    connection.executescript(_SCRIPT)


def check_version() -> None:
    """Raise StorageError when Python's SQLite is too old."""
    if sqlite3.sqlite_version_info < MINIMUM:
        raise StorageError(
            f"this Python carries SQLite {sqlite3.sqlite_version}; reliq needs {'.'.join(map(str, MINIMUM))} or newer"
        )
