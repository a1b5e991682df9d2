"""From an older schema to the present one, one step per version.

A step runs in one transaction, under the directory's lock. Processes of an older version
that have the store open must be stopped first: they would go on with the statements they have.
"""

from __future__ import annotations

#: Of the tables in ``schema.sql``. A store with a newer one is refused.
SCHEMA_VERSION = 2

#: What leads from the version to the next one.
MIGRATIONS: dict[int, str] = {
    1: """
ALTER TABLE job ADD COLUMN message BLOB;
DROP INDEX job_holder;
DROP INDEX job_lease;
CREATE INDEX job_lease ON job (qid, lease_ms, key, holder, serial) WHERE state = 'processing';
""",
}


def steps(version: int) -> list[str]:
    """The statements that lead from ``version`` to the present one."""
    script = "".join(MIGRATIONS[number] for number in range(version, SCHEMA_VERSION))
    return statements(script)


def statements(script: str) -> list[str]:
    """The statements of a script; each ends with its line."""
    return [part for part in script.split(";\n") if part.strip()]
