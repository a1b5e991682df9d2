"""``reliq worker`` behind the worker commands of frameworks: which queues, and how child processes find them."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Sequence

from ..cli.common import UsageError
from ..queue import Queue

#: Child processes inherit it. Names of queues cannot hold spaces.
_CHOSEN = "RELIQ_WORKER_QUEUES"


def launch(args: argparse.Namespace, target: str, names: Sequence[str]) -> int:
    """Run ``reliq worker TARGET`` with the options in ``args``; its exit code.

    ``target`` names a function that answers with :func:`chosen`, of ``names`` here. It is called in each process.
    """
    from ..cli import main, worker

    os.environ[_CHOSEN] = " ".join(names)
    # What the framework's own command put on the path, so that children can import the application, too.
    paths = [path for path in (os.path.abspath(sys.path[0]), os.environ.get("PYTHONPATH")) if path]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    args.target, args.run = target, worker.run
    return main.carry_out(args)


def chosen(queues: Iterable[Queue]) -> list[Queue]:
    """Those of ``queues`` that the command named, else all that have a handler; raises UsageError."""
    found = {queue.name: queue for queue in queues}
    names = os.environ.get(_CHOSEN, "").split()
    if unknown := [name for name in names if name not in found]:
        raise UsageError(f"no queue {unknown[0]!r}; there are: {', '.join(sorted(found)) or 'none'}")
    for name in names:
        if found[name].function is None:
            raise UsageError(f"queue {name!r} has no handler: decorate a function with its .handler")
    able = [queue for queue in found.values() if queue.function is not None and (not names or queue.name in names)]
    if not able:
        raise UsageError(f"no queue has a handler; there are: {', '.join(sorted(found)) or 'none'}")
    return able
