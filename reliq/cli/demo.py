"""``reliq demo``: shows what reliq does, with real worker processes, and checks every claim it prints."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import JobFailedError, ReliqError
from ..lifecycle import State
from ..retry import Backoff
from ..storage import registry
from .child import Child
from .common import EXIT_OK, CommandError, UsageError, file_directory, is_memory
from .demo_jobs import DIRECTORY_VARIABLE, QUEUE_NAME, Run, Workshop, make_queue

if TYPE_CHECKING:
    from argparse import _SubParsersAction

T = TypeVar("T")

#: So soon is a worker process that was killed known to be dead; the default is 15 s.
WORKER_TTL = 2.0
#: No step takes nearly as long; what does is a failed check.
PATIENCE = 20.0
_RETRY = Backoff(base=0.3, factor=2.0, jitter=0.0)

_EPILOG = """\
examples:
  reliq demo                                   on files in a temporary directory
  reliq demo --url redis://localhost:6379/0    on a Redis or Valkey server
  reliq demo --keep                            and look at what it leaves, with `reliq info`

exit codes: 0 all shown, 1 a check failed or the storage has trouble, 2 wrong usage
"""


def add_parser(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Describe the command."""
    parser = commands.add_parser(
        "demo",
        help="see what reliq does, in a few seconds and without a server",
        description="Start two worker processes and show deduplication, call, retries with backoff, a worker killed\n"
        "in the middle of a job, and dead letters. Every line that says `ok` was checked.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--url", metavar="URL", help="the storage to run on (default: files in a temporary directory)")
    parser.add_argument("--keep", action="store_true", help="leave the jobs where they are afterwards")
    parser.set_defaults(run=run)


class CheckFailedError(CommandError):
    """Something did not happen as the demo says it does."""


def run(args: argparse.Namespace) -> int:
    """Run all steps, and clean up however they end."""
    if args.url and is_memory(args.url):
        raise UsageError(
            "the demo runs several processes, and a memory:// storage lives inside one: use file:// or redis://, "
            "or leave --url out"
        )
    started = time.monotonic()
    with _interruptible(), Stage(args.url, args.keep) as stage:
        print(f"reliq demo on {stage.queue.storage.url}")
        for number, step in enumerate(STEPS, 1):
            print(f"\n{number}. {step.__doc__}")
            step(stage)
        stage.end_workers()
        print(f"\nAll {stage.checks} checks passed, {time.monotonic() - started:.1f} s.")
        if args.keep:
            print(f"Kept: reliq info --url {stage.queue.storage.url}")
    return EXIT_OK


class Stage:
    """The queue, its worker processes, and how the demo looks at them."""

    def __init__(self, url: str | None, keep: bool) -> None:
        if url:
            registry.check_url(url)
        self.directory = Path(tempfile.mkdtemp(prefix="reliq-demo-"))
        self.url = url or f"file://{self.directory / 'queue'}"
        self.workshop = Workshop(self.directory)
        self.workers: dict[str, Child] = {}
        self.checks = 0
        self._keep = keep
        target = file_directory(self.url)
        self._own_directory = target if target is not None and not target.exists() else None
        self.queue = make_queue().bind(self.url)

    def __enter__(self) -> Stage:
        try:
            storage = self.queue.storage
            if storage.workers(QUEUE_NAME):
                raise CommandError(f"workers serve the queue {QUEUE_NAME!r} there already: does another demo run?")
            self._sweep()  # what an earlier one may have kept
        except BaseException:
            self._leave(sweep=False)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with _uninterruptible():
            for worker in self.workers.values():
                worker.end(grace=5.0)
                worker.close()
            self._leave(sweep=not self._keep)

    # -- what steps do ----------------------------------------------------------------

    def say(self, text: str) -> None:
        """Something that was seen."""
        print(f"   {text}")

    def check(self, claim: str, holds: bool, seen: object = "") -> None:
        """State ``claim`` if it holds; otherwise the demo ends here."""
        if not holds:
            print(f"   FAILED  {claim}")
            raise CheckFailedError(f"the demo expected: {claim}; seen: {seen!r}")
        self.checks += 1
        print(f"   ok  {claim}")

    def start_worker(self, name: str) -> None:
        """A worker process, started as from a shell."""
        arguments = ["reliq.cli.demo_jobs:make_queue", "-t", "2", "--worker-id", name, "--worker-ttl", str(WORKER_TTL)]
        # What the handlers raise on purpose is shown by the steps, not as log lines.
        arguments += ["--log-level", "CRITICAL"]
        env = {"RELIQ_URL": self.url, DIRECTORY_VARIABLE: str(self.directory)}
        self.workers[name] = Child(arguments, env)
        self.say(f"$ reliq worker {' '.join(arguments)}   # pid {self.workers[name].pid}")

    def until(self, what: str, look: Callable[[], T | None]) -> T:
        """What ``look`` finds, as soon as it finds something."""
        deadline = time.monotonic() + PATIENCE
        while (found := look()) is None:
            if time.monotonic() > deadline:
                self.check(what, False, f"nothing within {PATIENCE:g} s")
            time.sleep(0.01)
        return found

    def end_workers(self) -> None:
        """The last check: a clean end."""
        print("\nThe end: SIGTERM to the worker that is left")
        codes = [worker.end(grace=10.0) for worker in self.workers.values() if worker.exit_code is None]
        self.check("it stopped by itself with exit code 0", codes == [0], codes)
        left = self.queue.counts()
        self.check("no job is held by anybody", left[State.PROCESSING] == 0, left)
        self.say("counts: " + ", ".join(f"{count} {state}" for state, count in left.items() if count))

    # -- cleaning up ------------------------------------------------------------------

    def _sweep(self) -> None:
        storage = self.queue.storage
        storage.purge(QUEUE_NAME)
        while storage.reap(QUEUE_NAME, interval_ms=1).more:
            pass

    def _leave(self, *, sweep: bool) -> None:
        try:
            if sweep:
                with contextlib.suppress(ReliqError):
                    self._sweep()
            self.queue.close()
        finally:
            if not self._keep:
                shutil.rmtree(self.directory, ignore_errors=True)
                if self._own_directory is not None:
                    shutil.rmtree(self._own_directory, ignore_errors=True)


# -- the steps ----------------------------------------------------------------------------


def _deduplication(stage: Stage) -> None:
    """Deduplication: one id, three enqueues, no worker yet"""
    payload = {"do": "send", "to": "ada@example.org", "succeeds_at": 1}
    answers = [stage.queue.enqueue("welcome-1", payload).status for _ in range(3)]
    stage.say(f'enqueue("welcome-1", ...) three times -> {", ".join(answers)}')
    stage.check("the first is accepted, the others are told", answers == ["queued", "duplicate", "duplicate"], answers)
    counts = stage.queue.counts()
    stage.check("the queue holds one job", counts[State.QUEUED] == 1, counts)
    for name in ("worker-a", "worker-b"):
        stage.start_worker(name)
    stage.queue.wait("welcome-1", PATIENCE)
    again = stage.queue.enqueue("welcome-1", payload)
    stage.say(f'after it ran, enqueue("welcome-1", ...) -> {again.status}, with its result: {again.result["done"]!r}')
    runs = stage.workshop.runs("welcome-1")
    stage.check("it ran once", again.status == "completed" and len(runs) == 1, (again, runs))


def _call(stage: Stage) -> None:
    """Call: enqueue and wait for the result of another process"""
    payload = {"do": "add", "numbers": list(range(101))}
    result, elapsed = _timed(lambda: stage.queue.call("sum-1", payload, timeout=PATIENCE))
    stage.say(f'call("sum-1", 0..100) -> {result["done"]} from pid {result["pid"]} in {elapsed * 1000:.1f} ms')
    pids = [worker.pid for worker in stage.workers.values()]
    stage.check("the sum is right", result["done"] == 5050, result)
    stage.check(f"a worker process computed it, not this one ({os.getpid()})", result["pid"] in pids, (result, pids))
    again, elapsed = _timed(lambda: stage.queue.call("sum-1", payload, timeout=PATIENCE))
    stage.say(f'call("sum-1", ...) again -> {again["done"]} in {elapsed * 1000:.1f} ms')
    runs = stage.workshop.runs("sum-1")
    stage.check("the second call got the cached result, nothing ran again", again == result and len(runs) == 1, runs)


def _retry(stage: Stage) -> None:
    """Retry with backoff: fails twice, then works"""
    result = stage.queue.call(
        "mail-1", {"do": "send", "succeeds_at": 3}, timeout=PATIENCE, max_attempts=5, backoff=_RETRY
    )
    status = stage.queue.get_status("mail-1")
    errors = status.errors if status is not None else ()
    runs = stage.workshop.runs("mail-1")
    stage.check("three attempts, the third succeeded", len(runs) == 3 and result["attempt"] == 3, (runs, result))
    stage.check("the errors of the first two are kept", [error.attempt for error in errors] == [1, 2], errors)
    for number, (before, after, error) in enumerate(zip(runs, runs[1:], errors, strict=False), 1):
        asked, waited = _RETRY.delay(number), after.at - before.at
        stage.say(f"attempt {number}: {error.error_type}: {error.message}")
        in_time = asked - 0.02 <= waited < asked + 5
        stage.check(f"the next attempt began {waited:.2f} s later (backoff: {asked:g} s)", in_time, waited)
    stage.say(f"attempt 3: {result['done']}")


def _kill(stage: Stage) -> None:
    """A worker process is killed in the middle of a job"""
    stage.queue.enqueue("report-1", {"do": "report"})
    first = stage.until("a worker begins the job", lambda: _first(stage.workshop.runs("report-1")))
    victim = stage.workers[first.worker_id]
    stage.say(f"{first.worker_id} (pid {first.pid}) works on report-1")
    os.kill(first.pid, signal.SIGKILL)
    code = victim.process.wait(PATIENCE)
    killed_at = time.time()
    stage.check(f"kill -9 {first.pid}: the process is gone", first.pid == victim.pid and code == -signal.SIGKILL, code)
    status = stage.queue.get_status("report-1")
    held = status is not None and (status.state, status.worker_id) == (State.PROCESSING, first.worker_id)
    stage.check("the job is unfinished and still in the dead worker's name", held, status)
    result = stage.queue.wait("report-1", PATIENCE)
    runs = stage.workshop.runs("report-1")
    last = runs[-1]
    later = last.at - killed_at
    stage.say(f"{last.worker_id} (pid {last.pid}) took it over {later:.1f} s later (worker_ttl {WORKER_TTL:g} s)")
    stage.check(
        "another process finished it",
        len(runs) == 2 and result["pid"] == last.pid != first.pid and result["done"] == "report written",
        (result, runs),
    )
    stage.check("the crash counted as an attempt", result["attempt"] == 2, result)


def _dead_letters(stage: Stage) -> None:
    """Dead letters: a job that cannot succeed is kept with its errors"""
    seen: Any = None
    try:
        seen = stage.queue.call(
            "invoice-1", {"do": "charge"}, timeout=PATIENCE, max_attempts=2, backoff=Backoff(base=0.1, jitter=0.0)
        )
    except JobFailedError as error:
        seen = error
        stage.say(f"call raised {type(error).__name__}: {error}")
    stage.check("its caller got the handler's error", getattr(seen, "error_type", "") == "ValueError", seen)
    dead = stage.queue.dead_letters.list()
    for letter in dead:
        stage.say(f"dead letter {letter.id}: {letter.attempts} attempts, {letter.error}")
    stage.check(
        "one dead letter, with the history of its errors",
        [(letter.id, letter.attempts, len(letter.errors)) for letter in dead] == [("invoice-1", 2, 2)],
        dead,
    )
    stage.workshop.repair()
    stage.say("the cause is repaired; dead_letters.retry('invoice-1')")
    stage.check("it was put back", stage.queue.dead_letters.retry("invoice-1"))
    result = stage.queue.wait("invoice-1", PATIENCE)
    stage.check(
        "it ran and the dead letters are empty",
        result["done"] == "charged" and len(stage.queue.dead_letters.list()) == 0,
        result,
    )


STEPS: tuple[Callable[[Stage], None], ...] = (_deduplication, _call, _retry, _kill, _dead_letters)


def _first(runs: list[Run]) -> Run | None:
    return runs[0] if runs else None


def _timed(function: Callable[[], T]) -> tuple[T, float]:
    started = time.perf_counter()
    return function(), time.perf_counter() - started


# -- signals ------------------------------------------------------------------------------


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """SIGTERM and SIGHUP end the demo as Ctrl-C does: cleanly."""

    def interrupt(_: int, __: FrameType | None) -> None:
        raise KeyboardInterrupt

    with _handling({signal.SIGTERM: interrupt, signal.SIGHUP: interrupt}):
        yield


@contextlib.contextmanager
def _uninterruptible() -> Iterator[None]:
    """Cleaning up takes a few seconds at most and must not be cut short."""
    with _handling(dict.fromkeys((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), signal.SIG_IGN)):
        yield


@contextlib.contextmanager
def _handling(handlers: dict[signal.Signals, Any]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():  # only there can handlers be set
        yield
        return
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
