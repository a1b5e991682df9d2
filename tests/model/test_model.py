"""Every storage against the model."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from reliq.storage.base import Storage

from ..file.many import Children, many_processes
from .machine import StorageMachine

# Making a failure shorter takes minutes: RELIQ_MODEL_SHRINK=1 asks for it.
PHASES = [Phase.generate, Phase.shrink] if os.environ.get("RELIQ_MODEL_SHRINK") == "1" else [Phase.generate]
QUICK = settings(
    max_examples=40,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    phases=PHASES,
    report_multiple_bugs=False,
    database=None,
    suppress_health_check=list(HealthCheck),
)
# RELIQ_MODEL_EXAMPLES=1000 for a night.
EXAMPLES = int(os.environ.get("RELIQ_MODEL_EXAMPLES", "40"))
THOROUGH = settings(QUICK, max_examples=EXAMPLES, stateful_step_count=80, derandomize=False)
PROFILES = [pytest.param(QUICK, id="quick"), pytest.param(THOROUGH, id="thorough", marks=pytest.mark.slow)]


def check(make: Callable[[], Storage], profile: settings) -> None:
    """Drive storages made by ``make`` beside the model."""

    class Machine(StorageMachine):
        pass

    Machine.make = staticmethod(make)
    run_state_machine_as_test(Machine, settings=profile)


@pytest.mark.parametrize("profile", PROFILES)
def test_memory(profile: settings) -> None:
    from reliq.storage.sql.memory import MemoryStorage

    check(MemoryStorage, profile)


@pytest.mark.parametrize("profile", PROFILES)
def test_file(tmp_path: Path, profile: settings) -> None:
    from reliq.storage.sql.file import FileStorage

    numbers = itertools.count()
    check(lambda: FileStorage(tmp_path / str(next(numbers)), durability="os"), profile)


@pytest.mark.slow
def test_file_processes(file_children: Children, tmp_path: Path) -> None:
    numbers = itertools.count()
    profile = settings(THOROUGH, max_examples=(EXAMPLES + 1) // 2)  # each step costs five times as much
    check(lambda: many_processes(file_children, tmp_path / str(next(numbers)), durability="os"), profile)


def test_control_processes_on_several_directories_differ_from_the_model(
    file_children: Children, tmp_path: Path
) -> None:
    apart = itertools.count()

    def make() -> Storage:
        number = next(apart)
        return many_processes(file_children, *(tmp_path / f"{number}-{child}" for child in "abc"), durability="os")

    with pytest.raises(AssertionError):
        check(make, QUICK)


@pytest.mark.parametrize("profile", PROFILES)
def test_redis(redis_url: str, redis_prefix: str, profile: settings) -> None:
    from reliq.storage.redis.storage import RedisStorage

    numbers = itertools.count()
    check(lambda: RedisStorage(redis_url, prefix=f"{redis_prefix}-{next(numbers)}"), profile)
