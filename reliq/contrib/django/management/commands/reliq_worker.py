"""``manage.py reliq_worker``: as ``reliq worker``, for the queues of the project."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from django.core.management.base import BaseCommand

from .....cli.worker import add_options
from ....launch import launch


class Command(BaseCommand):  # type: ignore[misc]  # Django has no types
    """Runs the jobs of the project's queues until it is stopped."""

    help = "Run the jobs of the queues in settings.RELIQ, and of reliq's backends in settings.TASKS, until stopped."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """The options of ``reliq worker``."""
        parser.add_argument(
            "queues", nargs="*", metavar="QUEUE", help="names of queues (default: all that have a handler)"
        )
        add_options(parser)

    def handle(self, **options: Any) -> None:
        """Exits with the codes of ``reliq worker``."""
        sys.exit(launch(argparse.Namespace(**options), "reliq.contrib.django.worker:find_queues", options["queues"]))
