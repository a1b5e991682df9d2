"""How fast are jobs of groups worked off, as a share of plain ones?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from reliq.storage.base import NewRecord, Storage
from reliq.storage.sql.file import FileStorage

from .drain import THREADS, drain_of, jobs_of, preload
from .harness import Bench, Figure, directory

GROUPS = 5_000
SHARE = 0.5


def measure(bench: Bench) -> list[Figure]:
    """Drains of plain jobs, of many groups and of one, in turns, on Redis and in files."""
    figures = []
    for name, open_storage in (("Redis", bench.storage), ("files", _file)):
        found = bench.repeat(f"groups on {name}", lambda one=open_storage: _rates(bench, one))  # type: ignore[misc]
        figures += [
            Figure(f"plain jobs on {name}, {THREADS} threads", "jobs/s", found["plain"]),
            Figure(f"  jobs of {GROUPS:,} groups", "jobs/s", found["groups"]),
            Figure("  as a share of the plain ones", "x", found["share"], SHARE, "at least"),
            Figure("  jobs of one group", "jobs/s", found["one"]),
        ]
    return figures


def _rates(bench: Bench, open_storage: Callable[[], AbstractContextManager[Storage]]) -> dict[str, float]:
    jobs = jobs_of(bench.amount(25_000, 10_000))
    grouped = [job._replace(group=f"group-{n % GROUPS}") for n, job in enumerate(jobs)]
    # One after the other is all that a group allows: fewer say as much.
    single = [job._replace(group="group") for job in jobs[: len(jobs) // 50]]
    plain, groups, one = (_rate(bench, open_storage, each) for each in (jobs, grouped, single))
    return {"plain": plain, "groups": groups, "share": groups / plain, "one": one}


def _rate(bench: Bench, open_storage: Callable[[], AbstractContextManager[Storage]], jobs: list[NewRecord]) -> float:
    bench.empty()
    with open_storage() as storage:
        preload(storage, jobs)
        return len(jobs) / drain_of(storage, jobs)


@contextmanager
def _file() -> Iterator[Storage]:
    with directory() as path:
        storage = FileStorage(path / "queue")
        try:
            yield storage
        finally:
            storage.close()
