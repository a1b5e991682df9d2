"""Queues in a Flask application.

* :class:`Reliq`: the extension, with ``init_app``, the queues of each application, ``flask reliq worker``, and a fresh
  application context around each job.
* :func:`blueprint`: a queue behind HTTP. :func:`mount`: any WSGI application under a prefix.
"""

from __future__ import annotations

from .door import blueprint
from .extension import Reliq
from .mount import mount

__all__ = ["Reliq", "blueprint", "mount"]
