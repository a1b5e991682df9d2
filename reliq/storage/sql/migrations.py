"""From an older schema to the present one, one step per version.

A step runs in one transaction, under the directory's lock. Processes of an older version
that have the store open must be stopped first: they would go on with the statements they have.
"""

from __future__ import annotations

#: Of the tables in ``schema.sql``. A store with a newer one is refused.
SCHEMA_VERSION = 3

#: What leads from the version to the next one.
MIGRATIONS: dict[int, str] = {
    1: """
ALTER TABLE job ADD COLUMN message BLOB;
DROP INDEX job_holder;
DROP INDEX job_lease;
CREATE INDEX job_lease ON job (qid, lease_ms, key, holder, serial) WHERE state = 'processing';
""",
    2: """
ALTER TABLE queue ADD COLUMN n_blocked INTEGER NOT NULL DEFAULT 0;
ALTER TABLE queue ADD COLUMN is_limited INTEGER NOT NULL DEFAULT 0;
ALTER TABLE queue ADD COLUMN is_bounded INTEGER NOT NULL DEFAULT 0;
ALTER TABLE queue ADD COLUMN is_coupled INTEGER NOT NULL DEFAULT 0;
UPDATE queue SET is_coupled = 1 WHERE substr(name, -5) = '.fifo';
CREATE TABLE limits (
    qid INTEGER PRIMARY KEY, rate INTEGER, rate_ms INTEGER NOT NULL, max_concurrency INTEGER, max_length INTEGER,
    group_concurrency INTEGER NOT NULL, bucket_us INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE tie (
    key INTEGER PRIMARY KEY, qid INTEGER NOT NULL, grp TEXT, sequence INTEGER, line_epoch INTEGER,
    not_before_ms INTEGER, progress BLOB
);
CREATE INDEX tie_line ON tie (qid, grp, line_epoch, sequence) WHERE line_epoch IS NOT NULL;
CREATE TABLE link (
    pred_key INTEGER NOT NULL, is_met INTEGER NOT NULL, dep_key INTEGER NOT NULL,
    PRIMARY KEY (pred_key, is_met, dep_key)
) WITHOUT ROWID;
CREATE INDEX link_dep ON link (dep_key, is_met);
CREATE TABLE cascade (key INTEGER PRIMARY KEY, qid INTEGER NOT NULL, id TEXT NOT NULL, cause TEXT NOT NULL);
CREATE INDEX cascade_queue ON cascade (qid, key);
CREATE TABLE schedule (
    qid INTEGER NOT NULL, name TEXT NOT NULL, spec BLOB NOT NULL, next_ms INTEGER NOT NULL, PRIMARY KEY (qid, name)
) WITHOUT ROWID;
CREATE INDEX schedule_next ON schedule (qid, next_ms);
""",
}


def steps(version: int) -> list[str]:
    """The statements that lead from ``version`` to the present one."""
    script = "".join(MIGRATIONS[number] for number in range(version, SCHEMA_VERSION))
    return statements(script)


def statements(script: str) -> list[str]:
    """The statements of a script; each ends with its line."""
    return [part for part in script.split(";\n") if part.strip()]
