"""What ``manage.py reliq_worker`` runs, in each of its processes."""

from __future__ import annotations

import django
from django.conf import settings
from django.utils.module_loading import autodiscover_modules

from ...queue import Queue
from ..launch import chosen
from .registry import queues


def find_queues() -> list[Queue]:
    """Load ``jobs.py`` (and, for django.tasks, ``tasks.py``) of every installed app; the queues that they serve."""
    django.setup()  # in a child process nobody did; a second time does nothing
    found: list[Queue] = []
    if django.VERSION >= (6, 0) and getattr(settings, "TASKS", None):
        from .backend import task_queues

        autodiscover_modules("tasks")
        found += task_queues()
    autodiscover_modules("jobs")
    return chosen([*queues.values(), *found])
