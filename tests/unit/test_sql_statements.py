"""The SQL files: their headers, their names, the rules filled in, the indexes they use."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from importlib.resources import files

import pytest

from reliq.lifecycle import Command, sources
from reliq.storage.sql import statements


@pytest.fixture
def connection() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.executescript(statements.SCHEMA)
        statements.install(connection)
        yield connection


@pytest.mark.parametrize("name", statements.TRANSITIONS)
def test_every_transition_says_what_goes_in_and_comes_out(name: str) -> None:
    text = files("reliq.storage.sql").joinpath(f"{name}.sql").read_text()
    header = "".join(line for line in text.splitlines(keepends=True)[:12] if line.startswith("--"))
    assert "-- In:" in header
    assert "-- Out:" in header
    stated = re.search(rf"INSERT INTO {name} \(([^)]*)\)", header)
    assert stated, "the header names the view's columns"
    view = re.search(rf"CREATE TEMP VIEW {name} AS\s+SELECT (.*?);", text, re.DOTALL)
    assert view
    assert stated[1].split(", ") == re.findall(r" AS (\w+)", view[1])


def test_every_file_is_loaded() -> None:
    names = {entry.name for entry in files("reliq.storage.sql").iterdir() if entry.name.endswith(".sql")}
    assert names == {f"{name}.sql" for name in (*statements.TRANSITIONS, "schema", "read", "check")}


def test_conditions_come_from_the_table() -> None:
    text = statements.load("cancel")
    for state in sources(Command.CANCEL):
        assert f"'{state}'" in text
    assert "{" not in text


@pytest.mark.parametrize("name", statements.READ)
def test_every_question_runs(connection: sqlite3.Connection, name: str) -> None:
    parameters = {
        "qid": 1, "now_ms": 0, "ids": '["a"]', "nonce": b"", "payload": 1, "a": None, "b": None, "limit_n": 1,
        "state": "queued", "seconds": 1, "seq": 0, "name": "q",
    }  # fmt: skip
    connection.execute(statements.READ[name], parameters).fetchall()


@pytest.mark.parametrize(
    ("query", "index"),
    [
        (statements.READ["list_queued"], "job_queued"),
        (statements.READ["next_due"], "job_due"),
        (statements.READ["list_processing"], "job_lease"),
        (statements.READ["list_failed"], "job_dead"),
        (statements.READ["list_blocked"], "job_due"),
        (statements.READ["list_waiting"], "job_due"),
        (statements.READ["backlog"], "tie_line"),
    ],
)
def test_questions_use_their_index(connection: sqlite3.Connection, query: str, index: str) -> None:
    parameters = {"qid": 1, "now_ms": 0, "a": None, "b": None, "limit_n": 1, "state": "queued"}
    plan = " ".join(row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {query}", parameters))
    assert index in plan
    assert "SCAN" not in plan
    assert "TEMP B-TREE" not in plan


def test_a_claim_reads_the_queue_in_the_order_of_its_index(connection: sqlite3.Connection) -> None:
    inner = re.search(r"SELECT key, priority.*?LIMIT", statements.load("claim"), re.DOTALL)
    assert inner
    query = re.sub(r"NEW\.\w+", "1", inner[0]) + " 10"
    plan = " ".join(row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {query}"))
    assert "job_queued" in plan
    assert "TEMP B-TREE" not in plan
