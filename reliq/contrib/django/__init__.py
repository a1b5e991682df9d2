"""Queues in a Django project.

* ``queues["emails"]``: the queues of ``settings.RELIQ`` (see :mod:`.conf`). What is enqueued inside of a transaction
  is sent when it commits; ``at_once()`` and ``after_commit("other")`` change that for a block.
* ``jobs.py`` of an app holds handlers, ``manage.py reliq_worker`` runs them, with ``"reliq.contrib.django"`` in
  ``INSTALLED_APPS``.
* ``reliq.contrib.django.backend.ReliqBackend``: a backend of ``django.tasks``, from Django 6 on.
* ``path("jobs/", include(urls(queue)))``: a queue behind HTTP; ``dashboard_urls()``: all of them in a browser.

Only the command needs the entry in ``INSTALLED_APPS``; nothing needs a table in the database.
"""

from __future__ import annotations

from .registry import Queues, integrate, queues
from .transactions import after_commit, at_once
from .views import dashboard_urls, urls, user_id, view

__all__ = ["Queues", "after_commit", "at_once", "dashboard_urls", "integrate", "queues", "urls", "user_id", "view"]
