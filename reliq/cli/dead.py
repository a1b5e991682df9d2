"""``reliq dead``: looks at the dead letters, tries them again, lets them go."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from ..facts import job_facts
from ..job import JobStatus
from ..lifecycle import State
from ..queue import Queue
from ..storage.base import MAX_BATCH
from ..validate import MAX_ID_BYTES, check_text
from .common import EXIT_OK, EXIT_TROUBLE, UsageError, add_command
from .confirm import add_yes, confirm
from .jobs import add_paging, tell_cursor, write_job, write_jobs
from .output import add_json, note, progress, write, write_json
from .targets import add_place, add_queue, open_place, queue_name
from .times import positive_seconds

if TYPE_CHECKING:
    from argparse import _SubParsersAction

_EPILOG = """\
examples:
  reliq dead ls emails                              what failed for good, and why
  reliq dead show order-2 -q payments               one of them, with tracebacks
  reliq dead retry order-2 order-3 -q payments      these again, with all their attempts
  reliq dead retry -q payments --error ConnectionError
  reliq dead discard -q payments --older 7d --yes

--older and --error choose among all dead letters; --all takes every one. exit codes: 0 done, 1 some of the IDs were no
dead letters, or storage trouble, 2 wrong usage
"""
#: One page of the search for what --older and --error choose: payloads of that many come along.
_PAGE = 200


def add_parser(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Describe the command and its own commands."""
    parser = add_command(
        commands, "dead", None, help="list, retry or discard dead letters",
        description="Dead letters are jobs that failed for good: their attempts were used up, or their handler\n"
        "rejected them. They are kept for dead_ttl (30 days), can be tried again, or be discarded.", epilog=_EPILOG,
    )  # fmt: skip
    verbs = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    each = add_command(
        verbs, "ls", run_ls, help="list dead letters, oldest first",
        description="List dead letters, oldest first. Changes nothing.",
        epilog="example:\n  reliq dead ls emails --older 1h --error Timeout\n",
    )  # fmt: skip
    add_queue(each)
    add_paging(each)
    _add_filters(each)
    add_place(each)
    add_json(each)

    each = add_command(
        verbs, "show", run_show, help="show one with its errors and tracebacks",
        description="Show one dead letter with its errors and tracebacks. Changes nothing.",
        epilog="example:\n  reliq dead show order-2 -q payments --payload\n",
    )  # fmt: skip
    each.add_argument("id", metavar="ID", help="the job")
    add_queue(each, is_positional=False)
    each.add_argument("--payload", action="store_true", help="also its payload")
    add_place(each)
    add_json(each)

    each = add_command(
        verbs, "retry", run_retry, help="put them back into their queue",
        description="Put dead letters back at the end of their queue, with all their attempts.",
        epilog="examples:\n  reliq dead retry order-2 -q payments\n  reliq dead retry -q payments --all\n"
        "  reliq dead retry -q payments --error 'the bank is busy'\n",
    )  # fmt: skip
    _add_choice(each)
    each = add_command(
        verbs, "discard", run_discard, help="remove them for good",
        description="Remove dead letters for good. Asks first.",
        epilog="examples:\n  reliq dead discard order-2 -q payments\n"
        "  reliq dead discard -q payments --older 7d --yes\n",
    )  # fmt: skip
    _add_choice(each)
    add_yes(each)


def _add_choice(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("ids", nargs="*", metavar="ID", help="the jobs")
    add_queue(parser, is_positional=False)
    parser.add_argument("--all", action="store_true", help="every dead letter")
    _add_filters(parser)
    add_place(parser)
    add_json(parser)


def _add_filters(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--older", type=positive_seconds, metavar="TIME", help="only those that failed so long ago: 1h")
    parser.add_argument("--error", metavar="TEXT", help="only those whose last error holds this text")


def run_ls(args: argparse.Namespace) -> int:
    """Print a page of dead letters."""
    with open_place(args) as place:
        queue = place.find(queue_name(args))
        keep = _filter(args)
        jobs: list[JobStatus] = []
        cursor = args.cursor
        while True:
            # No page is larger than what is still asked for: the cursor must not pass over matches.
            page = queue.dead_letters.list(limit=min(args.limit - len(jobs), MAX_BATCH), cursor=cursor)
            jobs += filter(keep, page)
            cursor = page.cursor
            if cursor is None or len(jobs) >= args.limit:
                break
        write_jobs(args, jobs, "no dead letters")
    tell_cursor(cursor)
    return EXIT_OK


def run_show(args: argparse.Namespace) -> int:
    """Print one dead letter."""
    with open_place(args) as place:
        queues = place.all(queue_name(args))
        found = [job for queue in queues if (job := queue.get_status(args.id)) is not None and job.state == "failed"]
        for job in found:
            if args.json:
                write_json(job_facts(job, with_payload=args.payload))
            else:
                write_job(job, with_payload=args.payload)
    if not found:
        note(f"{args.id!r} is no dead letter")
        return EXIT_TROUBLE
    return EXIT_OK


def run_retry(args: argparse.Namespace) -> int:
    """Put the chosen ones back."""
    with open_place(args) as place:
        queue = place.find(queue_name(args))
        if args.all and not args.ids and _filter_is_off(args):
            with progress("putting back"):
                count = queue.dead_letters.retry_all()
            return _report(args, "retried", count)
        return _apply(args, queue, "retried", lambda ids: queue.storage.revive(queue.name, ids))


def run_discard(args: argparse.Namespace) -> int:
    """Remove the chosen ones."""
    with open_place(args) as place:
        queue = place.find(queue_name(args))
        return _apply(args, queue, "discarded", lambda ids: queue.storage.discard(queue.name, ids))


def _apply(args: argparse.Namespace, queue: Queue, done: str, act: Callable[[Sequence[str]], Sequence[str]]) -> int:
    """Chosen first and acted upon then: one that fails again meanwhile is not taken twice."""
    ids = _choose(args, queue)
    if done == "discarded" and ids:
        confirm(args, f"Discard {len(ids)} dead letter(s) of queue {queue.name!r} for good?")
    changed: set[str] = set()
    with progress(f"{len(ids)} dead letter(s)") as tell:
        for at in range(0, len(ids), MAX_BATCH):
            changed.update(act(ids[at : at + MAX_BATCH]))
            tell(f"{len(changed)} {done}")
    left = [id for id in ids if id not in changed] if args.ids else []
    for id in left:
        note(f"{id!r} is no dead letter")
    return _report(args, done, len(changed), sorted(changed), is_whole=not left)


def _report(
    args: argparse.Namespace, done: str, count: int, ids: Sequence[str] | None = None, *, is_whole: bool = True
) -> int:
    if args.json:
        write_json({"count": count, "status": done} | ({"ids": ids} if ids is not None else {}))
    else:
        write(f"{count} {done}")
    return EXIT_OK if is_whole else EXIT_TROUBLE


def _choose(args: argparse.Namespace, queue: Queue) -> list[str]:
    has_filter = args.all or not _filter_is_off(args)
    if bool(args.ids) == has_filter:
        raise UsageError("say which dead letters: either IDs, or --all, --older TIME or --error TEXT")
    if args.ids:
        return list(dict.fromkeys(check_text("id", id, MAX_ID_BYTES) for id in args.ids))
    keep = _filter(args)
    with progress("looking through the dead letters") as tell:
        return [job.id for job in _dead(queue, tell) if keep(job)]


def _dead(queue: Queue, tell: Callable[[str], None]) -> Iterator[JobStatus]:
    count, cursor = 0, None
    while True:
        page = queue.dead_letters.list(limit=_PAGE, cursor=cursor)
        yield from page
        count += len(page)
        tell(f"{count} of {queue.storage.counts(queue.name)[State.FAILED]}")
        if (cursor := page.cursor) is None:
            return


def _filter_is_off(args: argparse.Namespace) -> bool:
    return args.older is None and args.error is None


def _filter(args: argparse.Namespace) -> Callable[[JobStatus], bool]:
    if args.error == "":
        raise UsageError("--error needs a text")
    before = None if args.older is None else time.time() - args.older

    def keep(job: JobStatus) -> bool:
        if before is not None and job.updated_at > before:
            return False
        return args.error is None or args.error in (job.error or "")

    return keep
