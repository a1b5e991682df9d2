"""The dashboard: queues, jobs, workers and dead letters in a browser.

``app = Dashboard(queues_or_storage)`` is a plain WSGI application, to be mounted in any server or framework, at any
prefix; ``reliq dashboard`` serves one by itself. It needs nothing that reliq does not need.

**Who may.** It only looks, unless ``allow_actions``. Payloads and results are not shown, unless ``show_payloads``; ids,
headers, progress, errors and tracebacks always are. ``authenticate(environ)`` is asked before anything is read.
Without it the dashboard answers only by names of the loopback, or by those in ``hosts``.

**Actions** (pause, resume, cancel a job, retry and discard dead letters) need a POST from one of its own pages with a
token of the browser's session. They work in bounded steps. Who did what is logged to ``reliq.dashboard``.

**For programs** there is JSON, which only looks:

==============================================  ====================================================================
GET                                             answer
==============================================  ====================================================================
``api/queues``, ``api/queues?queue=NAME``       ``queues``: counts, ``oldest_wait`` (seconds), limits, rates, workers
``api/jobs?queue=&state=&q=&cursor=&limit=``    ``jobs``, ``cursor`` for the next page; ``q`` searches ids and errors
``api/job?queue=&id=``                          one job with its errors
``api/workers``, ``api/workers?queue=NAME``     ``workers`` with the ids of the jobs they run
==============================================  ====================================================================

Refusals are problems of RFC 9457 whose ``code`` names them.
"""

from __future__ import annotations

from .app import Dashboard
from .options import DashboardOptions

__all__ = ["Dashboard", "DashboardOptions"]
