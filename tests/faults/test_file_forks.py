"""Processes that fork while a store is open."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from reliq.lifecycle import State
from reliq.storage.sql.check import check
from reliq.storage.sql.file import FileStorage

from .file_programs import QUEUE, FileProgram
from .support import _ROOT, PATIENCE, until

CHILD_IDS = [f"child-{n}" for n in range(100)]


def _fork(directory: Path, **config: Any) -> tuple[str, int]:
    """What the child said, and how many of its 100 jobs a third process sees."""
    with FileProgram("fork", directory=str(directory), **config) as program:
        said = program.output()
    storage = FileStorage(directory)
    try:
        assert storage.read(QUEUE, ["parent"])[0].state is State.QUEUED
        return said, sum(snapshot.state is State.QUEUED for snapshot in storage.read(QUEUE, CHILD_IDS))
    finally:
        storage.close()


def test_jobs_of_a_forked_child_outlive_the_parents_close(tmp_path: Path) -> None:
    assert _fork(tmp_path / "queue") == ("enqueued", 100)
    assert check(tmp_path / "queue").is_sound


def test_a_child_of_a_fork_without_the_hook_is_refused_with_the_remedy(tmp_path: Path) -> None:
    said, seen = _fork(tmp_path / "queue", control="no_hook")
    assert said.startswith("StorageError: ")
    assert "make a new FileStorage in it" in said
    assert seen == 0


def test_control_with_neither_hook_nor_refusal_acknowledged_jobs_are_lost(tmp_path: Path) -> None:
    said, seen = _fork(tmp_path / "queue", control="no_check")
    assert said == "enqueued"
    assert seen < 100


# -- a web server that loads the application before it forks ---------------------------


@contextmanager
def _gunicorn(directory: Path, **environment: str) -> Iterator[str]:
    """gunicorn --preload with 2 workers; its address."""
    if importlib.util.find_spec("gunicorn") is None:
        pytest.skip("gunicorn is not installed (pip install gunicorn)")
    listener = socket.create_server(("127.0.0.1", 0))
    os.set_inheritable(listener.fileno(), True)
    process = subprocess.Popen(
        [sys.executable, "-m", "gunicorn", "--preload", "--workers=2", "--threads=2", "--worker-class=gthread",
         f"--bind=fd://{listener.fileno()}", "--log-level=warning", "--worker-tmp-dir=/dev/shm", "--no-control-socket",
         "tests.faults.file_programs:web_application()"],
        cwd=_ROOT, env={**os.environ, "RELIQ_URL": f"file://{directory}", **environment}, pass_fds=[listener.fileno()],
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        process.terminate()
        _, errors = process.communicate(timeout=PATIENCE)
        listener.close()
        print(errors)


def _get(address: str) -> tuple[int, Any]:
    with urllib.request.urlopen(address, timeout=PATIENCE) as response:
        pid, answer = json.load(response)
        return pid, answer


def _ask_all(url: str, path: str, expected: Any = None) -> defaultdict[int, list[tuple[str, Any]]]:
    """Ask until both workers have answered ten times: (id, answer) by pid."""
    answers: defaultdict[int, list[tuple[str, Any]]] = defaultdict(list)

    def ask() -> bool:
        id = f"{path}-{sum(map(len, answers.values()))}"
        pid, answer = _get(f"{url}/{path}?{id}")
        answers[pid].append((id, answer))
        return len(answers) == 2 and all(len(each) >= 10 for each in answers.values())

    until(ask, what="both workers")
    return answers


def _serve(directory: Path, **environment: str) -> list[tuple[str, str, Any]]:
    """Everything that both workers answered: (path, id, answer)."""
    found = []
    with (
        _gunicorn(directory, **environment) as url,
        FileProgram("worker", directory=str(directory), journal=str(directory.parent / "journal"), worker_ttl=15),
    ):
        for path in ("enqueue", "call"):
            for answers in _ask_all(url, path).values():
                found += [(path, id, answer) for id, answer in answers]
    return found


def test_both_workers_of_a_preloaded_gunicorn_enqueue_and_call(tmp_path: Path) -> None:
    found = _serve(tmp_path / "queue")
    wrong = [each for each in found if (each[2] != "queued" if each[0] == "enqueue" else len(each[2]) != 12)]
    assert wrong == []
    storage = FileStorage(tmp_path / "queue")
    try:
        states = {snapshot.id: snapshot.state for snapshot in storage.read(QUEUE, [id for _, id, _ in found])}
    finally:
        storage.close()
    assert len(states) == len(found)
    assert set(states.values()) <= {State.COMPLETED, State.QUEUED, State.PROCESSING}
    assert {states[id] for path, id, _ in found if path == "call"} == {State.COMPLETED}
    assert check(tmp_path / "queue").is_sound


def test_control_without_the_hook_the_workers_of_a_preloaded_gunicorn_are_refused(tmp_path: Path) -> None:
    found = _serve(tmp_path / "queue", RELIQ_TEST_NO_HOOK="1")
    assert found
    assert all("forked without" in answer for _, _, answer in found)
