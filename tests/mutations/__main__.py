"""``python -m tests.mutations``: does a test notice each of the ways to break the package?"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time
from pathlib import Path

from .lua import LUA
from .mutation import Mutation
from .python import PYTHON
from .runner import ROOT, Sandbox, Verdict, baseline, copy, try_all
from .sql import SQL

ALL = (*LUA, *SQL, *PYTHON)


def main(arguments: list[str] | None = None) -> int:
    """Exit code 0 when every mutation was noticed, 1 when not, 2 when that could not be found out."""
    options = _parse(arguments)
    if options.list:
        for mutation in ALL:
            print(f"{mutation.name:36} {mutation.invariant}")
        return 0
    chosen = [mutation for mutation in ALL if not options.only or any(word in mutation.name for word in options.only)]
    if not chosen:
        print("no mutation has such a name; see --list", file=sys.stderr)
        return 2
    return _run(chosen, options.jobs)


def _run(chosen: list[Mutation], jobs: int) -> int:
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        snapshot = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="reliq-snapshot-")))
        copy(ROOT, snapshot)
        sandboxes = [stack.enter_context(Sandbox(snapshot)) for _ in range(jobs)]
        if red := baseline(sandboxes, chosen):
            print("tests are red without any mutation:", *red, sep="\n", file=sys.stderr)
            return 2
        print(f"{'unmutated':36} green in {time.monotonic() - began:.0f} s", flush=True)
        verdicts = try_all(sandboxes, chosen, _tell)
    passed = sum(verdict.noticed for verdict in verdicts)
    failed = len(chosen) - passed
    if failed:  # once more where a long log ends, and where it is cut
        print("\nnot noticed:")
        for verdict in verdicts:
            if not verdict.noticed:
                _tell(verdict)
    print(f"{passed} passed, {failed} failed in {time.monotonic() - began:.0f} s")
    return 1 if failed else 0


def _tell(verdict: Verdict) -> None:
    mutation = verdict.mutation
    reason = verdict.reason.rpartition("::")[2] if verdict.noticed else f"{verdict.reason}  [{mutation.invariant}]"
    print(f"{mutation.name:36} {'ok  ' if verdict.noticed else 'FAIL'} {verdict.seconds:5.1f} s  {reason}", flush=True)


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=__doc__)
    parser.add_argument("only", nargs="*", help="parts of names; without any, all mutations")
    parser.add_argument("--list", action="store_true", help="print names and invariants")
    parser.add_argument("--jobs", type=int, default=4, help="how many at once (default 4, for some of them wait)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
