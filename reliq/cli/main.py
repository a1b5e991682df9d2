"""The command line: finds the subcommand, turns its errors into texts and exit codes."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from ..errors import InvalidJobError, ReliqError
from . import (
    bench,
    cancel,
    check,
    completion,
    dashboard,
    dead,
    demo,
    doctor,
    info,
    jobs,
    limits,
    reap,
    schedules,
    submit,
    upkeep,
    worker,
)
from .common import EXIT_INTERRUPTED, EXIT_OK, EXIT_TROUBLE, EXIT_USAGE, CommandError, UsageError

_EPILOG = """\
examples:
  reliq demo                                  see what reliq does; needs no server
  reliq worker app.jobs:q -t 8                run the jobs of the queue `q` in app/jobs.py
  reliq info --url redis://localhost:6379/0   queues, counts and workers
  reliq enqueue -q emails welcome-1 '{"to": "a@example.org"}'
  reliq ls emails --state failed              what failed for good
  reliq show welcome-1                        one job, with errors and tracebacks
  reliq dashboard                             the same and more in a browser
  reliq doctor                                is the storage set up well, and its data in order?

Where queues are: --url URL or --app MODULE:ATTRIBUTE, else the environment variables RELIQ_APP and RELIQ_URL. Times are
seconds, or 30s, 5m, 1h30m, 2d. --json prints one object per line.

exit codes: 0 done, 1 something is wrong (a failed job or check, storage trouble), 2 wrong usage
`reliq COMMAND --help` says more about each command.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. argparse itself exits with 2 on what it refuses."""
    return carry_out(make_parser().parse_args(arguments))


def carry_out(args: argparse.Namespace) -> int:
    """Run the command of parsed arguments; its exit code."""
    try:
        code: int = args.run(args)
        sys.stdout.flush()
    except (UsageError, InvalidJobError) as error:
        return _fail(error, EXIT_USAGE)
    except (CommandError, ReliqError) as error:
        return _fail(error, EXIT_TROUBLE)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader, head for one, has seen enough. The interpreter's own flush at exit must not raise again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_OK
    return code


def _fail(error: Exception, code: int) -> int:
    print(f"reliq: {error}", file=sys.stderr)
    return code


class _Version(argparse.Action):
    """``--version``, looked up only when it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from .. import __version__

        print(f"reliq {__version__}")
        parser.exit()


def make_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = argparse.ArgumentParser(
        prog="reliq",
        description="A reliable job queue for synchronous, threaded Python.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in (
        demo,
        worker,
        info,
        jobs,
        submit,
        cancel,
        dead,
        upkeep,
        limits,
        schedules,
        reap,
        doctor,
        check,
        dashboard,
        bench,
        completion,
    ):
        command.add_parser(commands)
    return parser
