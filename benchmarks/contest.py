"""reliq and its peers at the same work, each in processes of its own, driven by one loop (peers/adapter.py)."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from . import environments
from .harness import Bench, Figure
from .peers.adapter import STAMP, Options

ROOT = Path(__file__).resolve().parents[1]
#: How long an answer or a drain may take.
PATIENCE_S = 60.0
THREADS = 8
SIZE = 64


@dataclass(frozen=True, slots=True)
class Peer:
    """Somebody who takes part.

    ``pace``, roughly the jobs/s of a drain, only says how many jobs make a run of a second.
    """

    name: str
    module: str
    pace: int
    kind: Literal["reliq", "python", "node"] = "python"
    #: Its interface blocks the thread that calls it, as reliq's does.
    is_synchronous: bool = True
    #: Whether there is a choice not to keep results.
    has_results_off: bool = False


RELIQ = Peer("reliq", "reliq", 30_000, "reliq")
PEERS = (
    Peer("rq", "rq", 400, has_results_off=True),
    Peer("dramatiq", "dramatiq", 1_100, has_results_off=True),
    Peer("celery", "celery", 350, has_results_off=True),
    Peer("huey", "huey", 700, has_results_off=True),
    Peer("taskiq", "taskiq", 1_000, is_synchronous=False, has_results_off=True),
    Peer("saq", "saq", 1_000, is_synchronous=False),
    Peer("arq", "arq", 800, is_synchronous=False, has_results_off=True),
    Peer("bullmq-py", "bullmq_py", 1_100, is_synchronous=False),
    Peer("bullmq", "bullmq", 6_000, "node", is_synchronous=False),
    Peer("platformatic", "platformatic", 3_300, "node", is_synchronous=False),
)


class PeerError(Exception):
    """A peer failed, or gave a wrong result; says how."""


class Contestant:
    """One peer, ready to be asked. A context manager: its processes end with it."""

    def __init__(self, peer: Peer, bench: Bench, **options: Any) -> None:
        self.peer = peer
        self.bench = bench
        self._environment = dict(os.environ)
        self._directory = tempfile.TemporaryDirectory(prefix="reliq-benchmark-")
        self._stamps = Path(self._directory.name) / "stamps"
        self._options = {"url": bench.server.url, "stamps": str(self._stamps), "concurrency": THREADS, **options}
        self._log = Path(self._directory.name) / "log"
        self._producer: subprocess.Popen[bytes] | None = None
        self._workers: list[subprocess.Popen[bytes]] = []
        self._answers = b""
        self._cwd = ROOT
        if peer.kind == "reliq":
            self._command = [sys.executable, "-m", f"benchmarks.peers.{peer.module}"]
        elif peer.kind == "python":
            self._command = [*environments.python(peer.module, bench.say), "-m", f"benchmarks.peers.{peer.module}"]
        else:
            command, self._cwd = environments.node(peer.module, bench.say)
            self._command = [*command, f"{peer.module}.mjs"]

    def __enter__(self) -> Self:
        self.clear(1)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop_workers()
        if self._producer is not None:
            _end(self._producer)
        self._directory.cleanup()

    # -- what it is asked ---------------------------------------------------------------

    def ask(self, do: str, **how: Any) -> Any:
        """One question to the producer; PeerError when it fails, or does not answer in time."""
        if self._producer is None:
            self._producer = self._start("serve")
        assert self._producer.stdin is not None
        assert self._producer.stdout is not None
        try:
            self._producer.stdin.write(json.dumps({"do": do, **how}).encode() + b"\n")
            self._producer.stdin.flush()
        except BrokenPipeError:
            raise PeerError(f"the producer ended: {self._last_words()}") from None
        deadline = time.monotonic() + PATIENCE_S + how.get("seconds", 0.0)
        while b"\n" not in self._answers:
            ready, _, _ = select.select([self._producer.stdout], [], [], max(0.0, deadline - time.monotonic()))
            chunk = os.read(self._producer.stdout.fileno(), 1 << 16) if ready else b""
            if not chunk:
                raise PeerError(f"{do}: {'no answer in time' if not ready else self._last_words()}")
            self._answers += chunk
        line, _, self._answers = self._answers.partition(b"\n")
        answer = json.loads(line)
        if "error" in answer:
            raise PeerError(f"{do}: {answer['error']}")
        return answer["ok"]

    def number(self, seconds: float) -> int:
        """How many jobs a drain of about so long takes."""
        return max(100, int(self.peer.pace * seconds) // 100 * 100)

    def enqueue(self, number: int, first: int = 0, **how: Any) -> dict[str, Any]:
        """One by one: when it began, seconds, number."""
        return dict(self.ask("enqueue", first=first, number=number, **{"size": SIZE, **how}))

    def enqueue_many(self, number: int, first: int = 0, **how: Any) -> dict[str, Any]:
        """In batches of 100."""
        return dict(self.ask("enqueue_many", first=first, number=number, **{"size": SIZE, "batch": 100, **how}))

    def fill(self, number: int, first: int = 0, **how: Any) -> dict[str, Any]:
        """The fastest way that the peer has."""
        if self.has_bulk:
            return self.enqueue_many(number, first, **how)
        return self.enqueue(number, first, lanes=THREADS, **how)

    def call(self, number: int, first: int, **how: Any) -> dict[str, Any]:
        """Calls: seconds of all and of each."""
        return dict(self.ask("call", first=first, number=number, **{"size": SIZE, **how}))

    def check(self, number: int) -> None:
        """Wait until every job enqueued since the last clear has its own result."""
        if (checked := self.ask("check")["checked"]) != number:
            raise PeerError(f"{checked} results were checked, not {number}")

    def check_queued(self, number: int) -> None:
        """So many jobs must be queued."""
        if (queued := self.ask("queued")) != number:
            raise PeerError(f"{number} jobs were enqueued, {queued} are queued")

    @property
    def has_bulk(self) -> bool:
        """Whether many jobs can be enqueued at once."""
        return bool(self.ask("abilities")["bulk"])

    # -- workers -----------------------------------------------------------------------

    def start_workers(self, number: int = 1) -> None:
        """Worker processes; they may take a while until they work."""
        self._workers += [self._start("work") for _ in range(number)]

    def stop_workers(self) -> None:
        """At once, with whatever they started."""
        for worker in self._workers:
            _end(worker)
        self._workers.clear()
        # Until the server has seen it: a job that it hands to a connection of the dead is gone with most peers.
        self.bench.await_nobody_blocked()

    def warm(self, workers: int = 1, number: int = 100) -> int:
        """Start workers and have them run some jobs; how many, numbered from 0."""
        self.start_workers(workers)
        self.enqueue(number)
        self.wait(0, number)
        return number

    def clear(self, number: int) -> None:
        """Forget all jobs, make room for so many."""
        with self._stamps.open("wb") as file:
            file.truncate(number * STAMP.size)
        if self._producer is not None:
            self.ask("forget")

    def wait(self, first: int, number: int) -> tuple[list[float], list[float]]:
        """Until so many jobs ran: when they began and ended. Each must have run once."""
        with self._stamps.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as stamps:
            deadline, done = time.monotonic() + PATIENCE_S, first
            while done < first + number:
                # In order, and from where it stood: a look at all of them each time would take a core.
                if STAMP.unpack_from(stamps, STAMP.size * done)[2]:
                    done += 1
                    continue
                if time.monotonic() > deadline:
                    raise PeerError(f"a job has not run after {PATIENCE_S:g} s: {self._last_words()}")
                if all(worker.poll() is not None for worker in self._workers):
                    raise PeerError(f"the worker ended: {self._last_words()}")
                time.sleep(0.005)
            found = [STAMP.unpack_from(stamps, STAMP.size * n) for n in range(first, first + number)]
        for n, (_, _, count) in enumerate(found, first):
            if count != 1:
                raise PeerError(f"job {n} ran {count:g} times")
        return [began for began, _, _ in found], [ended for _, ended, _ in found]

    def memory(self) -> int:
        """Resident bytes of the workers and of what they started; a page that two share counts once for each."""
        groups = {worker.pid for worker in self._workers}
        pages = 0
        for status in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError, ProcessLookupError):
                if os.getpgid(int(status.parent.name)) in groups:
                    pages += int((status.parent / "statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def _start(self, role: str) -> subprocess.Popen[bytes]:
        options = asdict(Options(**self._options))
        with self._log.open("ab") as log:
            return subprocess.Popen(
                [*self._command, role, json.dumps(options)],
                cwd=self._cwd,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if role == "serve" else log,
                stderr=log,
                # Not a session of its own: Linux may share the cores out among sessions, and the server is in ours.
                process_group=0,
            )

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return lines[-1][-300:] if lines else "it said nothing"


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with contextlib.suppress(BrokenPipeError):
                stream.close()
    process.wait()


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one peer measured, by name; or why not."""

    peer: Peer
    values: dict[str, tuple[float, ...]]
    trouble: str = ""


class Round:
    """One question put to all."""

    def __init__(self, outcomes: Sequence[Outcome]) -> None:
        self.outcomes = outcomes
        self.reliq = outcomes[0].values

    def figures(
        self, name: str, label: str, unit: str, target: float | None = None, *, less: bool = False
    ) -> list[Figure]:
        """One line for each peer that has this figure, the failed ones as well; the target is reliq's."""
        found = []
        for outcome in self.outcomes:
            if outcome.trouble:
                found.append(Figure(f"{label}: {outcome.peer.name}", unit, (), note=f"FAILED: {outcome.trouble}"))
            elif values := outcome.values.get(name):
                aim = target if outcome.peer is RELIQ else None
                goal: Literal["at most", "at least"] = "at most" if less else "at least"
                found.append(Figure(f"{label}: {outcome.peer.name}", unit, values, aim, goal))
        return found

    def lead(
        self, name: str, text: str, among: Callable[[Peer], bool], target: float | None = None, *, less: bool = False
    ) -> list[Figure]:
        """reliq in terms of the best of some peers; nothing when none of them has the figure."""
        medians = {
            outcome.peer.name: statistics.median(outcome.values[name])
            for outcome in self.outcomes
            if outcome.peer is not RELIQ and among(outcome.peer) and name in outcome.values
        }
        if not medians or name not in self.reliq:
            return []
        best = (min if less else max)(medians, key=lambda peer: medians[peer])
        values = tuple(value / medians[best] for value in self.reliq[name])
        named = text if text == best else f"{text} ({best})"
        return [Figure(f"  reliq in terms of {named}", "x", values, target, "at most" if less else "at least")]


def contest(
    bench: Bench,
    what: str,
    measure: Callable[[Contestant], dict[str, float]],
    only: Callable[[Peer], bool] = lambda _: True,
    **options: Any,
) -> Round:
    """Ask reliq and the chosen peers, one after the other; who fails is reported, and fails nothing else."""
    outcomes = []
    for peer in (RELIQ, *(peer for peer in PEERS if peer.name in bench.peers and only(peer))):
        try:
            with Contestant(peer, bench, **options) as contestant:
                bench.versions.setdefault(peer.name, contestant.ask("versions"))
                values = bench.repeat(f"{what}: {peer.name}", lambda one=contestant: measure(one))  # type: ignore[misc]
            outcomes.append(Outcome(peer, values))
        except (PeerError, environments.EnvironmentUnavailableError) as error:
            if peer is RELIQ:
                raise
            bench.say(f"{what}: {peer.name} FAILED, {error}")
            outcomes.append(Outcome(peer, {}, str(error)))
    return Round(outcomes)


def nobody(_: Peer) -> bool:
    """reliq alone."""
    return False


def is_python(peer: Peer) -> bool:
    """Peers of the same language."""
    return peer.kind == "python"


def is_synchronous(peer: Peer) -> bool:
    """Peers of the same kind."""
    return peer.kind == "python" and peer.is_synchronous


def is_bullmq(peer: Peer) -> bool:
    """The one that is set as a mark."""
    return peer.name == "bullmq"


def anyone(_: Peer) -> bool:
    """All of them."""
    return True


@contextmanager
def working(contestant: Contestant, room: int, workers: int = 1) -> Iterator[int]:
    """Workers that have worked already, for so many jobs; the number of the next one."""
    contestant.clear(room + 100)
    try:
        yield contestant.warm(workers)
    finally:
        contestant.stop_workers()
