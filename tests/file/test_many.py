"""The storage that is many processes is what it says: one store, several processes, and nothing left of them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from reliq.errors import InvalidJobError, StorageError
from reliq.lifecycle import State
from reliq.storage.base import Storage
from reliq.testing import StorageContract
from reliq.testing.contract.base import LONG_FALLBACK_MS
from reliq.testing.contract.steps import PATIENCE, QUEUE, Background, put, settle, take_one, until

from .link import LinkError
from .many import Children, many_processes, started


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "queue"


@pytest.fixture
def storage(file_children: Children, directory: Path) -> Iterator[Storage]:
    storage = many_processes(file_children, directory)
    storage.fallback_ms = LONG_FALLBACK_MS
    yield storage
    storage.close()


def test_each_process_in_turn_serves_and_all_see_one_store(
    storage: Storage, file_children: Children, directory: Path
) -> None:
    put(storage, "a")
    waits = [Background(lambda: storage.wait(QUEUE, "a", timeout=PATIENCE)) for _ in file_children.pids]
    bells = directory / "bell"
    until(lambda: len(list(bells.glob("*.asleep"))) == len(file_children.pids))
    assert {int(path.name.partition("-")[0]) for path in bells.glob("*.asleep")} == set(file_children.pids)
    for wait in waits:
        wait.until_asleep()
    settle(storage, take_one(storage), result=b"r")
    assert {wait.prompt_result().result for wait in waits} == {b"r"}  # type: ignore[union-attr]


def test_errors_keep_their_types(storage: Storage) -> None:
    put(storage, "a")
    with pytest.raises(InvalidJobError, match="cursor must come from the page before") as caught:
        storage.list_ids(QUEUE, State.QUEUED, "no cursor", 10)
    assert "In the other process" in caught.value.__notes__[0]


def test_a_clock_that_is_put_forward_is_that_of_all_processes(storage: Storage, file_children: Children) -> None:
    storage.skew_ms += 3_600_000
    created = []
    for child in range(len(file_children.pids)):
        put(storage, str(child))
        created.append(storage.read(QUEUE, [str(child)])[0].created_at_ms)
    assert max(created) - min(created) < 60_000


def test_a_listener_hears_on_a_thread_that_may_use_the_storage(storage: Storage) -> None:
    heard: list[tuple[str, State]] = []
    stop = storage.subscribe(QUEUE, lambda name, id: heard.append((name, storage.read(QUEUE, [id])[0].state)))
    put(storage, "a")
    until(lambda: heard == [("queued", State.QUEUED)])
    stop()


def test_a_closed_one_is_closed_everywhere(storage: Storage, file_children: Children) -> None:
    put(storage, "a")
    storage.close()
    storage.close()
    for _ in file_children.pids:
        with pytest.raises(StorageError, match="closed"):
            storage.counts(QUEUE)


# -- what the controls show: without one store behind it the suite fails ------------------


@pytest.fixture
def apart(file_children: Children, tmp_path: Path) -> Iterator[Storage]:
    """The same processes, each on a directory of its own."""
    storage = many_processes(file_children, *(tmp_path / name for name in "abc"))
    storage.fallback_ms = LONG_FALLBACK_MS
    yield storage
    storage.close()


def test_control_what_goes_to_another_directory_is_not_seen(apart: Storage) -> None:
    put(apart, "a")
    assert apart.read(QUEUE, ["a"])[0].state is State.ABSENT
    assert apart.read(QUEUE, ["a"])[0].state is State.ABSENT
    assert apart.read(QUEUE, ["a"])[0].state is State.QUEUED, "the first process has its turn again"


@pytest.mark.parametrize(
    "test",
    [
        StorageContract.test_i02_stale_entries_are_not_listed,
        StorageContract.test_listings_come_roughly_in_the_order_of_service,
        StorageContract.test_two_queues_know_nothing_of_each_other,
    ],
)
def test_control_the_contract_fails_on_several_directories(
    apart: Storage, test: Callable[[StorageContract, Storage], None]
) -> None:
    with pytest.raises(AssertionError):
        test(StorageContract(), apart)


# -- the processes ----------------------------------------------------------------------


def test_children_end_with_their_pipes_and_leave_nothing(tmp_path: Path) -> None:
    with started(2) as children:
        pids = children.pids
        storage = many_processes(children, tmp_path / "queue")
        put(storage, "a")
        storage.close()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_control_a_child_that_keeps_something_is_named(tmp_path: Path) -> None:
    with started(2) as children:
        storage = many_processes(children, tmp_path / "queue")
        for _ in children.pids:
            storage.counts(QUEUE)
        with pytest.raises(AssertionError, match=r"still has .*queue\.db"):
            children.closed(linger_seconds=0)


def test_a_killed_child_is_an_error_of_the_calls_that_it_served(tmp_path: Path) -> None:
    with started(1) as children:
        storage = many_processes(children, tmp_path / "queue")
        put(storage, "a")
        wait = Background(lambda: storage.wait(QUEUE, "a", timeout=PATIENCE)).until_asleep()
        os.kill(children.pids[0], signal.SIGKILL)
        with pytest.raises(LinkError, match="ended"):
            wait.result()
        with pytest.raises(LinkError, match="gone"):
            storage.counts(QUEUE)
