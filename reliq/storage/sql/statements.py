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
from ..base import BURST_MS, HISTORY, MAX_BATCH, MAX_CLAIM_BYTES, MAX_TICKS, STEADY_MS, TOMBSTONE_MS

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

# The rate limit's bucket, of a row of `limits`. `bucket_us` is the time at which all tokens would have come in one by one
# since they were taken (GCRA): a token is there while it is not further ahead than the burst.
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
    "purge_left": "("
    + " OR ".join(
        f"EXISTS (SELECT 1 FROM job WHERE qid = NEW.qid AND epoch < {_EPOCH} AND {where})"
        for where in ("state = 'queued'", "due_ms IS NOT NULL", "sweep_ms IS NOT NULL")
    )
    + ")",
    "never": str(NEVER_MS),
    # How many of a group may be out of the line at once.
    "abreast": "(SELECT ifnull(max(group_concurrency), 1) FROM limits WHERE qid = NEW.qid)",
    "persistent": "EXISTS (SELECT 1 FROM tie WHERE tie.key = job.key AND tie.grp = '')",
    "steady": f"iif(NEW.now_ms - updated_ms >= {STEADY_MS}, 0, min(attempts, max_attempts - 1))",
    "tick_us": _TICK,
    "bucket_us": _BUCKET,
    "token_us": _TOKEN,
    "open": f"(max_concurrency IS NULL OR n_processing < max_concurrency) AND (rate IS NULL OR {_TOKEN} <= 0)",
    "max_batch": str(MAX_BATCH),
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


def _batch() -> str:
    names = [f"p{n}" for n in range(BATCH_PARAMETERS)]
    parts = [f"CREATE TEMP VIEW batch AS SELECT '' AS transition, {', '.join(f'0 AS {name}' for name in names)};"]
    for transition in COMBINED:
        view = re.search(rf"CREATE TEMP VIEW {transition} AS\s+SELECT (.*?);", load(transition), re.DOTALL)
        count = view[1].count(" AS ") if view else 0
        values = ", ".join(f"NEW.{name}" for name in names[:count])
        body = f"INSERT INTO {transition} VALUES ({values});"  # noqa: S608 (names of our own files)
        parts.append(
            f"CREATE TEMP TRIGGER batch_{transition} INSTEAD OF INSERT ON batch WHEN NEW.transition = '{transition}' "
            f"BEGIN {body} END;"
        )
    return "\n".join(parts)


_SCRIPT = "\n".join([*(load(name) for name in TRANSITIONS), _batch()])


#: The columns of the tables that are staged, in order, so that rows may leave out the last ones.
STAGED = {
    table: tuple(re.findall(r"(\w+) (?:INTEGER|TEXT|BLOB)", columns))
    for table, columns in re.findall(r"CREATE TEMP TABLE (\w+_in) \((.*?)\);", _SCRIPT, re.DOTALL)
}


def install(connection: sqlite3.Connection) -> None:
    """Create the transitions on a connection; they live in its TEMP schema."""
    connection.executescript(_SCRIPT)


def check_version() -> None:
    """Raise StorageError when Python's SQLite is too old."""
    if sqlite3.sqlite_version_info < MINIMUM:
        raise StorageError(
            f"this Python carries SQLite {sqlite3.sqlite_version}; reliq needs {'.'.join(map(str, MINIMUM))} or newer"
        )
