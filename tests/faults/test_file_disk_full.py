"""A disk without space: nothing half done, an error that says what to do, and on it goes when there is space again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from reliq.lifecycle import State
from reliq.storage.sql.check import check
from reliq.storage.sql.file import FileStorage

from .file_programs import QUEUE, FileProgram


def _on_tmpfs(tmpfs: Path, **config: Any) -> tuple[Path, dict[str, Any]]:
    ballast = tmpfs / "ballast"
    ballast.write_bytes(bytes(4 << 20))
    with FileProgram("fill", directory=str(tmpfs / "queue"), ballast=str(ballast), **config) as program:
        return tmpfs / "queue", program.output()


def _limited(directory: Path, **config: Any) -> tuple[Path, dict[str, Any]]:
    with FileProgram("fill", directory=str(directory), **config) as program:
        return directory, program.output()


def _verify(directory: Path, found: dict[str, Any]) -> None:
    storage = FileStorage(directory)
    try:
        states = {job.id: job.state for job in storage.read(QUEUE, found["accepted"])}
    finally:
        storage.close()
    assert [id for id in found["accepted"] if states[id] is State.ABSENT] == []
    assert set(found["found"]) == {0}, "refused, and there all the same"
    report = check(directory)
    assert report.is_sound, report.problems
    assert report.jobs == len(found["accepted"])
    assert found["readable"] == len(found["accepted"]) - 20, "reading goes on while the disk is full"
    assert found["resumed"]
    assert found["repeated"]
    assert found["settled"] == ["completed"] * 5


def test_a_full_disk_refuses_and_work_goes_on_when_there_is_space(tmpfs: Path) -> None:
    directory, found = _on_tmpfs(tmpfs)
    _verify(directory, found)
    assert len(found["errors"]) >= 5
    for what, name, text in found["errors"]:
        assert (name, "free some" in text) == ("StorageUnavailableError", True), (what, name, text)
    assert {what for what, *_ in found["errors"]} == {"enqueue", "settle"}


def test_a_limit_on_the_size_of_files_is_an_error_and_work_goes_on_when_it_is_lifted(tmp_path: Path) -> None:
    """The write comes back short, and then fails: not as ENOSPC does."""
    directory, found = _limited(tmp_path / "queue")
    _verify(directory, found)
    assert found["errors"]
    for what, name, text in found["errors"]:
        assert name in ("StorageUnavailableError", "OutcomeUnknownError"), (what, name, text)
        assert str(directory) in text


def test_control_a_batch_that_is_no_single_step_leaves_phantoms(tmpfs: Path) -> None:
    directory, found = _on_tmpfs(tmpfs, torn=True)
    with pytest.raises(AssertionError, match="refused, and there all the same"):
        _verify(directory, found)
