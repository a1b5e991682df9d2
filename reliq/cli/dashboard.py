"""``reliq dashboard``: the dashboard behind the standard library's server, for one operator or behind a proxy."""

from __future__ import annotations

import argparse
import ipaddress
import signal
import threading
from types import FrameType
from typing import TYPE_CHECKING

from .common import EXIT_OK, UsageError, add_command
from .output import note, write
from .serving import in_url, serving
from .targets import add_place, open_place

if TYPE_CHECKING:
    from argparse import _SubParsersAction

_EPILOG = """\
examples:
  reliq dashboard --url redis://localhost:6379/0      look, at http://127.0.0.1:8765/
  reliq dashboard --app app.jobs:q --allow-actions    also pause, cancel, retry and discard
  reliq dashboard --host 10.0.0.5 --allow-host jobs.example.org

It has no users of its own: whoever reaches the address may do what it allows. On a shared network put a server with
authentication in front, or mount reliq.dashboard.Dashboard in an application of yours.
exit codes: 0 ended by SIGINT or SIGTERM, 1 storage trouble or the address is taken, 2 wrong usage
"""


def add_parser(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Describe the command."""
    parser = add_command(
        commands, "dashboard", run, help="show queues, jobs and workers in a browser",
        description="Serve the dashboard until SIGINT or SIGTERM. Changes nothing, unless --allow-actions.",
        epilog=_EPILOG,
    )  # fmt: skip
    parser.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help="listen here (default: 127.0.0.1)")
    parser.add_argument("--port", type=_port, default=8765, metavar="N", help="0 for any that is free (default: 8765)")
    parser.add_argument("--allow-actions", action="store_true", help="pause, resume, cancel, retry and discard, too")
    parser.add_argument("--show-payloads", action="store_true", help="show payloads and results, too")
    parser.add_argument(
        "--allow-host", action="append", default=[], metavar="NAME",
        help="answer by this name, too, as browsers say it; may be repeated",
    )  # fmt: skip
    add_place(parser)


def run(args: argparse.Namespace) -> int:
    """Serve until a signal."""
    from ..dashboard import Dashboard

    hosts = _hosts(args.host, args.allow_host)
    stop = threading.Event()

    def end(_: int, __: FrameType | None) -> None:
        stop.set()

    with open_place(args) as place:
        dashboard = Dashboard(
            [*place.own_queues, *place.storages],
            allow_actions=args.allow_actions,
            show_payloads=args.show_payloads,
            hosts=hosts,
        )
        # A signal's handler may not ask the server to stop: it would wait for the thread that it interrupts.
        numbers = (signal.SIGTERM, signal.SIGINT)
        before = {number: signal.signal(number, end) for number in numbers}
        try:
            with serving(args.host, args.port, dashboard, "dashboard") as port:
                write(f"http://{in_url(args.host)}:{port}/")
                note(
                    "Ctrl-C ends it"
                    if args.allow_actions
                    else "read-only (--allow-actions changes that); Ctrl-C ends it"
                )
                while not stop.wait(0.2):  # a signal that comes just before a wait does not end it
                    pass
        finally:
            dashboard.close()
            for number, handler in before.items():
                signal.signal(number, handler)
    return EXIT_OK


def _hosts(host: str, more: list[str]) -> list[str]:
    from ..dashboard.options import LOOPBACK

    address = _address(host)
    if address is not None and address.is_unspecified:
        if not more:
            raise UsageError(f"{host} is every address of this machine: say --allow-host NAME, by which it answers")
        return [*LOOPBACK, *more]
    return [*LOOPBACK, in_url(host), *more]


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _port(text: str) -> int:
    value = int(text)
    if not 0 <= value <= 65_535:
        raise argparse.ArgumentTypeError(f"must be from 0 to 65535, got {value}")
    return value


_port.__name__ = "port"  # argparse shows it
