"""Worker processes on one queue that are killed and started anew, and the history of what they ran.

The processes are the program ``crowd`` (:mod:`.programs`). They and the test write one journal, each line in one write,
so that the order of its lines is the order in which things happened. A run that was going on in a process when it was
killed ends with the line that the test writes after that death.
"""

from __future__ import annotations

import math
import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from reliq import Queue
from reliq.retry import Backoff
from reliq.storage.base import Storage
from reliq.storage.redis.storage import RedisStorage
from reliq.storage.sql.file import FileStorage

from .file_programs import QUEUE, Journal
from .support import Program, until

#: A reaper looks so often.
REAP_S = 1.0
#: What a busy machine may add to a time that is bounded.
SLACK_S = 1.0


def open_storage(where: dict[str, Any]) -> Storage:
    """``{"url": ..., "prefix": ...}`` or ``{"directory": ...}``. Only processes are killed, so nothing is synced."""
    if "url" in where:
        return RedisStorage(where["url"], prefix=where["prefix"])
    return FileStorage(where["directory"], durability="os")


# -- the history ----------------------------------------------------------------------


@dataclass(slots=True)
class Run:
    """One execution. ``start`` and ``end`` are lines of the journal, ``began`` and ``ended`` seconds of one clock."""

    id: str
    pid: str
    attempt: str
    result: str
    start: int
    began: float
    end: float = math.inf
    ended: float = math.inf
    how: str = "open"  # returned, raised, died
    is_settled: bool = False
    #: It ended in a process that lived on, and its outcome was refused: it ran on without its lease, which nothing can
    #: prevent (a machine so busy that it held up a whole process for longer than worker_ttl).
    is_lost: bool = False


class History:
    """What the journal says. ``notes`` are the lines of other kinds, each with its place."""

    def __init__(self, lines: Iterable[Sequence[str]]) -> None:
        self.runs: list[Run] = []
        self.deaths: set[str] = set()
        self.notes: list[tuple[int, list[str]]] = []
        self.completions: Counter[str] = Counter()
        open_runs: dict[str, Run] = {}
        by_claim: dict[tuple[str, ...], Run] = {}
        for line, (kind, *words) in enumerate(lines):
            match kind:
                case "start":
                    id, pid, attempt, result, at = words
                    run = Run(id, pid, attempt, result, line, float(at))
                    self.runs.append(run)
                    open_runs[result] = by_claim[id, pid, attempt] = run
                case "end":
                    run = open_runs.pop(words[0])
                    run.end, run.ended, run.how = line, float(words[1]), words[2]
                case "settled":
                    if (settled := by_claim.get(tuple(words[:3]))) is not None:
                        settled.is_settled = True
                    self.completions[words[0]] += words[3] == "completed"
                case "killed":
                    self.deaths.add(words[0])
                    for run in [run for run in open_runs.values() if run.pid == words[0]]:
                        del open_runs[run.result]
                        run.end, run.ended, run.how = line, float(words[1]), "died"
                case _:
                    self.notes.append((line, [kind, *words]))
        for run in self.runs:
            run.is_lost = run.how in ("returned", "raised") and not run.is_settled and run.pid not in self.deaths

    @classmethod
    def read(cls, path: Path) -> Self:
        return cls(Journal.read(path))

    def held(self) -> list[Run]:
        """Runs that had their lease until they ended."""
        return [run for run in self.runs if not run.is_lost]

    def excessive(self) -> list[str]:
        """Ids with more executions than one, and one for each failure and each death before an end was acknowledged."""
        runs: defaultdict[str, list[Run]] = defaultdict(list)
        for run in self.runs:
            runs[run.id].append(run)
        return [
            id for id, found in runs.items()
            if len(found) > 1 + sum(
                (run.how == "raised" if run.is_settled else run.is_lost or run.pid in self.deaths)
                for run in found
            )
        ]  # fmt: skip


def broken_order(history: History) -> list[str]:
    """Where jobs of one group overlap, or one starts after a later one has. Ids are GROUP-NUMBER."""
    troubles = []
    last: dict[str, Run] = {}
    for run in history.held():  # in the order of their starts
        group, _, number = run.id.rpartition("-")
        before = last.get(group)
        if before is not None:
            if run.start < before.end:
                troubles.append(f"{run.id} beside {before.id}")
            if int(number) < int(before.id.rpartition("-")[2]):
                troubles.append(f"{run.id} after {before.id}")
        if before is None or run.end > before.end:
            last[group] = run
    return troubles


def most_at_once(runs: Iterable[Run]) -> int:
    """The most runs that overlapped."""
    runs = list(runs)
    changes = [(run.start, 1) for run in runs] + [(run.end, -1) for run in runs]
    now = most = 0
    for _, change in sorted(changes):
        now += change
        most = max(most, now)
    return most


# -- the processes --------------------------------------------------------------------


class Crowd:
    """``processes`` workers on a queue at ``where``; ``config`` is the program's, ``options`` the queue's."""

    def __init__(
        self, where: dict[str, Any], root: Path, processes: int, config: dict[str, Any], **options: Any
    ) -> None:
        self.journal_path = root / "journal"
        self.storage = open_storage(where)
        self.queue = Queue(QUEUE, self.storage, backoff=Backoff(base=0.01, factor=1.0), **options)
        self.journal = Journal(self.journal_path)
        self._config = {**where, "journal": str(self.journal_path), **config}
        self._config.pop("server", None)
        self.programs: list[Program] = []
        self._ready: set[Program] = set()
        self._number = processes
        self.kills = 0

    def start(self) -> Self:
        """All processes, ready."""
        self.programs = [Program("crowd", **self._config) for _ in range(self._number)]
        self.wait_ready()
        return self

    def wait_ready(self) -> None:
        """Wait for those that were started anew."""
        for program in self.programs:
            if program not in self._ready:
                self._ready.add(program.wait_ready())

    def kill(self, number: int, *, restart: bool = True) -> float:
        """kill -9 to one of them; when, by the monotonic clock. A new one is on its way when this returns."""
        victim = self.programs[number]
        victim.kill()
        at = time.monotonic()
        self.journal.write("killed", victim.pid, at)
        self.kills += 1
        victim.__exit__()
        if restart:
            self.programs[number] = Program("crowd", **self._config)
        else:
            del self.programs[number]
        return at

    def kill_any(self) -> float:
        return self.kill(random.randrange(len(self.programs)))

    def number_of(self, pid: str) -> int:
        """Which of the processes has this pid."""
        return next(n for n, program in enumerate(self.programs) if str(program.pid) == pid)

    def history(self) -> History:
        return History.read(self.journal_path)

    def going_on(self) -> list[Run]:
        """What runs now, in processes that live."""
        return [run for run in self.history().runs if run.how == "open"]

    def drain(self, patience: float) -> None:
        """Wait until nothing is left, then end the processes in order."""
        until(lambda: not self.storage.backlog(QUEUE), patience, "the end of the work")
        self.stop()

    def stop(self) -> None:
        """SIGTERM to all; everything that they acknowledged is in the journal then."""
        self.wait_ready()
        for program in self.programs:
            assert program.terminate() == 0, program.errors

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for program in self.programs:
            program.__exit__()
        self.journal.close()
        self.queue.close()
        self.storage.close()


@contextmanager
def sampled(look: Callable[[], Any]) -> Iterator[list[Any]]:
    """What ``look()`` says, again and again, from a thread of its own, while the block runs."""
    found: list[Any] = []
    errors: list[BaseException] = []
    stop = threading.Event()

    def sample() -> None:
        try:
            while not stop.wait(0.003):
                found.append(look())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield found
    finally:
        stop.set()
        thread.join()
    if errors:
        raise errors[0]
