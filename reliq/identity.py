"""Names for workers that nobody named."""

from __future__ import annotations

import os
import socket


def default_worker_label() -> str:
    """``host-pid``: what people look for in logs. The random instance makes a worker unique."""
    return f"{socket.gethostname()[:100]}-{os.getpid()}"
