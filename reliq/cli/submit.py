"""``reliq enqueue`` and ``reliq call``: jobs from a shell."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import CallTimeoutError, JobFailedError
from ..queue import Queue
from ..serde import RawSerde
from ..shown import safe
from .common import EXIT_OK, EXIT_TROUBLE, UsageError, add_command, at_least_one
from .output import add_json, note, write, write_json
from .targets import add_place, add_queue, open_place, queue_name
from .times import moment, positive_seconds, seconds

if TYPE_CHECKING:
    from argparse import _SubParsersAction

_PAYLOADS = """\
PAYLOAD is JSON, @FILE reads it from a file, - from the standard input; without one it is null. An empty ID ('') makes a
unique one. With --app the queue's own options and serde apply (RawSerde takes PAYLOAD as it stands); without, the
library's: 3 attempts, results for an hour.
"""
_ENQUEUE_EPILOG = f"""\
examples:
  reliq enqueue -q emails welcome-1 '{{"to": "a@example.org"}}'
  reliq enqueue -q emails reminder-1 @mail.json --delay 2h --priority 5
  echo '[1, 2, 3]' | reliq enqueue -q sums '' -
  reliq enqueue -q build link --after a.o --after b.o --header trace=4711

{_PAYLOADS}
A duplicate is no error: what is printed says so.
exit codes: 0 accepted or a duplicate, 1 storage trouble or a full queue, 2 refused
"""
_CALL_EPILOG = f"""\
examples:
  reliq call -q sums sum-1 '[1, 2, 3]'                prints 6
  reliq call -q sums sum-1 '[1, 2, 3]' --timeout 5m | jq .

{_PAYLOADS}
A job of that ID which runs or has completed is joined. The timeout ends the waiting, not the job.
exit codes: 0 the result was printed, 1 the job failed, was cancelled or did not end in time, or storage trouble,
2 refused
"""


def add_parser(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Describe the commands."""
    parser = add_command(
        commands, "enqueue", run_enqueue, help="enqueue a job",
        description="Enqueue one job, unless its id is taken.", epilog=_ENQUEUE_EPILOG,
    )  # fmt: skip
    _add_job(parser)
    add_json(parser)
    parser = add_command(
        commands, "call", run_call, help="enqueue a job and wait for its result",
        description="Enqueue a job, wait for its end and print its result as JSON.", epilog=_CALL_EPILOG,
    )  # fmt: skip
    _add_job(parser)
    parser.add_argument(
        "--timeout", type=positive_seconds, default=30.0, metavar="TIME", help="how long to wait (default: 30s)"
    )


def _add_job(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", nargs="?", default="", metavar="ID", help="the job's id (default: a unique one)")
    parser.add_argument("payload", nargs="?", metavar="PAYLOAD", help="JSON, @FILE or -")
    add_queue(parser, is_positional=False)
    add_place(parser)
    group = parser.add_argument_group("the job")
    due = group.add_mutually_exclusive_group()
    due.add_argument("--delay", type=seconds, metavar="TIME", help="not before so long from now: 30s, 5m, 1h, 2d")
    due.add_argument("--at", type=moment, metavar="WHEN", help="not before 2027-01-31T08:00:00+01:00, or epoch")
    group.add_argument("--priority", type=int, metavar="0-9", help="higher first (default: 0)")
    group.add_argument("--group", metavar="NAME", help="jobs of one group run in order, one at a time")
    group.add_argument("--after", action="append", metavar="ID", help="a job that must complete first; may be repeated")
    group.add_argument("--header", action="append", metavar="NAME=VALUE", help="beside the payload; may be repeated")
    group.add_argument("--max-attempts", type=at_least_one, metavar="N", help="how often it may run")
    group.add_argument("--time-limit", type=positive_seconds, metavar="TIME", help="how long its handler may take")
    group.add_argument("--result-ttl", type=positive_seconds, metavar="TIME", help="how long its result is kept")
    group.add_argument("--dedup-ttl", type=positive_seconds, metavar="TIME", help="how long its id is a duplicate")
    group.add_argument("--persistent", action="store_true", default=None, help="run it again and again until cancelled")


def run_enqueue(args: argparse.Namespace) -> int:
    """Enqueue, and say what became of it."""
    options = _options(args)
    with open_place(args, may_create=True) as place:
        queue = place.find(queue_name(args), may_be_new=True)
        answer = queue.enqueue(args.id or None, read_payload(queue, args.payload), **options)
    if args.json:
        write_json(answer)
    else:
        state = "" if answer.state == answer.status else f" ({answer.state})"
        write(f"{answer.status} {safe(answer.id)}{state}")
    return EXIT_OK


def run_call(args: argparse.Namespace) -> int:
    """Enqueue, wait, print the result."""
    options = _options(args)
    with open_place(args, may_create=True) as place:
        queue = place.find(queue_name(args), may_be_new=True)
        payload = read_payload(queue, args.payload)
        try:
            result = queue.call(args.id or None, payload, timeout=args.timeout, **options)
        except JobFailedError as error:
            note(safe(str(error)))
            if error.traceback:
                write(safe(error.traceback, lines=True).rstrip(), sys.stderr)
            return EXIT_TROUBLE
        except CallTimeoutError as error:
            note(f"{safe(str(error))}. `reliq show` tells how far it is, and `reliq call` with its id joins it")
            return EXIT_TROUBLE
    write_json(result)
    return EXIT_OK


def _options(args: argparse.Namespace) -> dict[str, Any]:
    names = (
        "delay", "at", "priority", "group", "after", "max_attempts", "time_limit", "result_ttl", "dedup_ttl",
        "persistent",
    )  # fmt: skip
    options = {name: value for name in names if (value := getattr(args, name)) is not None}
    if args.header:
        options["headers"] = dict(_header(text) for text in args.header)
    return options


def _header(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise UsageError(f"--header takes NAME=VALUE, got {text!r}")
    return name, value


def read_payload(queue: Queue, text: str | None) -> Any:
    """The payload that an argument stands for."""
    if text is None:
        return None
    try:
        if text == "-":
            text, where = sys.stdin.read(), "the standard input"
        elif text.startswith("@"):
            text, where = Path(text[1:]).read_text(encoding="utf-8"), text[1:]
        else:
            where = "PAYLOAD"
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the payload cannot be read: {error}") from error
    if isinstance(queue.options.payload_serde, RawSerde):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        hint = f"; a text needs quotes: '{json.dumps(text)}'" if where == "PAYLOAD" and len(text) < 40 else ""
        raise UsageError(f"{where} is not JSON: {error}{hint}") from None
