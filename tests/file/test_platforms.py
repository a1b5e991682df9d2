"""Platforms without Linux's list of mounts and its events of closed files, as far as that can be played here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys, threading, time
from pathlib import Path
import filelock, watchdog.observers, zoneinfo  # these are the real platform's
sys.platform = "darwin"
from watchdog.events import FileModifiedEvent
from reliq.storage.base import Outcome, Verb, Worker
from reliq.storage.sql import bell, places
from reliq.storage.sql.file import FileStorage
from tests.file.child import record

assert bell._EVENT is FileModifiedEvent
places._MOUNTS = Path("/proc-is-not-there/mountinfo")
one, other = FileStorage(sys.argv[1]), FileStorage(sys.argv[1])
one.fallback_ms = other.fallback_ms = 60_000
doorbell = other.doorbell(["q"], "work")
assert doorbell.wait(0) is None
rung = []
sleeper = threading.Thread(target=lambda: rung.append(doorbell.wait(30)))
sleeper.start()
began = time.monotonic()
one.enqueue("q", [record("a")])
sleeper.join()
assert rung == ["q"] and time.monotonic() - began < 10, (rung, time.monotonic() - began)
alice = Worker("alice", "1")
[job] = other.claim("q", alice, 1, serial=1, lease_ms=10_000).jobs
other.settle("q", alice, [Outcome(job.id, job.nonce, job.token, Verb.COMPLETE)])
assert one.wait("q", "a", timeout=0).state == "completed"
doorbell.close()
one.close()
other.close()
"""


def test_a_store_works_without_what_only_linux_has(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, tmp_path / "queue"], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert list((tmp_path / "queue" / "bell").iterdir()) == []
