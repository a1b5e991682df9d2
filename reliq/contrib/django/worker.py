"""What ``manage.py reliq_worker`` runs, in each of its processes."""

from __future__ import annotations

import django
from django.utils.module_loading import autodiscover_modules

from ...queue import Queue
from ..launch import chosen
from .registry import queues


def find_queues() -> list[Queue]:
    """Load ``jobs.py`` (and, for django.tasks, ``tasks.py``) of every installed app; the queues that they serve."""
    django.setup()  # in a child process nobody did; a second time does nothing
    tasks = _task_queues()
    if tasks:
        autodiscover_modules("tasks")
    autodiscover_modules("jobs")
    return chosen([*queues.values(), *tasks])


def _task_queues() -> list[Queue]:
    if django.VERSION < (6, 0):
        return []
    from .backend import task_queues

    return task_queues()
