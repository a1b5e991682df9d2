"""``flask reliq worker``: as ``reliq worker``, for the queues of the application."""

from __future__ import annotations

import argparse
import os
import sys

import click
import flask
from flask.cli import AppGroup, ScriptInfo

from ...cli.common import UsageError
from ...cli.worker import add_options
from ...queue import Queue
from ..launch import chosen, launch

group = AppGroup("reliq", help="Run the jobs of this application's queues.")


@group.command(
    "worker",
    # Its options are those of `reliq worker`, which argparse knows.
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False, "help_option_names": []},
    short_help="Run the jobs of the application's queues until stopped.",
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def worker(context: click.Context, arguments: tuple[str, ...]) -> None:
    """Run the jobs until stopped; `flask reliq worker --help` shows the options."""
    parser = argparse.ArgumentParser(
        prog="flask reliq worker", description="Run the jobs of the application's queues until stopped."
    )
    parser.add_argument("queues", nargs="*", metavar="QUEUE", help="names (default: all that have a handler)")
    add_options(parser)
    args = parser.parse_args(list(arguments))
    if path := context.ensure_object(ScriptInfo).app_import_path:
        os.environ["FLASK_APP"] = path  # `flask --app` is known to this process only; child processes look here
    sys.exit(launch(args, "reliq.contrib.flask.command:find_queues", args.queues))


def find_queues() -> list[Queue]:
    """The queues of the application that this process is for."""
    app = flask.current_app if flask.has_app_context() else ScriptInfo(os.environ.get("FLASK_APP")).load_app()
    if "reliq" not in app.extensions:  # the command came with it, a child's application may be another one
        raise UsageError(f"the application {app.name!r} has no Reliq: call init_app with it")
    return chosen(app.extensions["reliq"].queues())
