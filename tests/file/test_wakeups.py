"""Whoever sleeps is woken, however the ring falls: while an announcement goes, or when it is late to be answered."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from reliq.lifecycle import State
from reliq.storage.sql.file import FileStorage
from reliq.testing.contract.base import LONG_FALLBACK_MS
from reliq.testing.contract.steps import PATIENCE, QUEUE, Background, cancel, put, until


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[FileStorage, FileStorage]]:
    """Two storages with a bell each, as two processes have them."""
    pair = FileStorage(tmp_path / "queue"), FileStorage(tmp_path / "queue")
    for storage in pair:
        storage.fallback_ms = LONG_FALLBACK_MS
    yield pair
    for storage in pair:
        storage.close()


@pytest.mark.parametrize("kind", ["wait", "doorbell"])
def test_whoever_begins_to_sleep_while_the_announcement_goes_is_woken(
    pair: tuple[FileStorage, FileStorage], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    sleeping, other = pair
    put(other, "a")
    assert sleeping.wait(QUEUE, "a", timeout=0) is None, "the announcement is there, and nobody sleeps"
    bell = sleeping.doorbell(["elsewhere"], "work")
    sleepers: list[Background[object]] = []
    has_sleepers = sleeping._has_sleepers

    def is_needed() -> bool:
        answer = has_sleepers()
        if not sleepers:  # the moment after the answer: the sleeper asks whether it is announced
            sleep = (
                (lambda: bell.wait(PATIENCE)) if kind == "doorbell"
                else (lambda: sleeping.wait(QUEUE, "a", timeout=PATIENCE))
            )  # fmt: skip
            sleepers.append(Background[object](sleep).until_asleep())
        return answer

    monkeypatch.setattr(sleeping._bell, "_is_needed", is_needed)
    put(other, "b")  # rings for nobody
    until(lambda: len(sleepers) == 1)
    sleepers[0].until_asleep()
    if kind == "doorbell":
        put(other, "a", queue="elsewhere")
    else:
        cancel(other, "a")
    assert sleepers[0].prompt_result() is not None
    bell.close()


def test_a_waiter_is_woken_though_its_job_has_a_new_life_when_the_ring_is_answered(
    pair: tuple[FileStorage, FileStorage], monkeypatch: pytest.MonkeyPatch
) -> None:
    sleeping, other = pair
    put(other, "a")
    first = Background(lambda: sleeping.wait(QUEUE, "a", timeout=PATIENCE))
    until(lambda: any(waiter.nonce for waiters in sleeping._wakeups._waiters.values() for waiter in waiters))
    begin = threading.Event()
    answer = sleeping._answer_bell
    monkeypatch.setattr(sleeping._bell, "_answer", lambda: (begin.wait(PATIENCE), answer()))
    cancel(other, "a")
    put(other, "a")
    begin.set()
    ended = first.prompt_result()
    assert ended is not None
    assert (ended.state, ended.cause) == (State.ABSENT, "cancelled")
