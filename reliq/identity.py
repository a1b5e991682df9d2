"""Names for what nobody named."""

from __future__ import annotations

import os


def default_worker_label() -> str:
    """``host-pid``: what people look for in logs. The random instance makes a worker unique."""
    return f"{os.uname().nodename[:100]}-{os.getpid()}"


def unique_name(size: int) -> str:
    """``size`` random bytes as hexadecimal digits. The modules ``uuid`` and ``secrets`` do no more for that, and
    take longer to load than the rest of a queue."""
    return os.urandom(size).hex()
