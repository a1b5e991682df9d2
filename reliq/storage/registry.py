"""Storages by URL: equal URLs share one object per process, counted by its users."""

from __future__ import annotations

import threading
from urllib.parse import unquote, urlsplit

from ..errors import InvalidJobError
from .base import Storage

SCHEMES = (
    "redis://", "rediss://", "unix://", "valkey://", "valkeys://", "redis+sentinel://", "redis+cluster://",
    "file:///path", "memory://[name]",
)  # fmt: skip

_lock = threading.Lock()
_shared: dict[str, tuple[Storage, int]] = {}


def check_url(url: str) -> None:
    """Raise InvalidJobError for a URL of an unknown scheme, without connecting anywhere."""
    scheme, divider, _ = url.partition("://")
    if not divider or not any(known.startswith(f"{scheme}://") for known in SCHEMES):
        # Only what looks like a scheme is shown: anything else may hold a password.
        got = f"scheme {scheme!r}" if divider and scheme.isalnum() else "something else"
        raise InvalidJobError(f"storage URL must begin with one of {', '.join(SCHEMES)}, got {got}")


def acquire(url: str) -> Storage:
    """The process's storage for ``url``, made on first use. Pair with :func:`release`."""
    with _lock:
        storage, users = _shared.get(url, (None, 0))
        if storage is None:
            storage = _make(url)
        _shared[url] = (storage, users + 1)
        return storage


def release(url: str) -> None:
    """Give one use of ``url`` back; the last user closes the storage."""
    with _lock:
        storage, users = _shared.pop(url)
        if users > 1:
            _shared[url] = (storage, users - 1)
            return
    storage.close()


def _make(url: str) -> Storage:
    # Imported here so that a process pays only for the client library it uses.
    check_url(url)
    scheme = urlsplit(url).scheme
    if scheme == "memory":
        from .sql.memory import MemoryStorage

        return MemoryStorage(unquote(url.partition("://")[2]))
    if scheme == "file":
        from .sql.file import FileStorage

        parts = urlsplit(url)
        if parts.netloc or not parts.path:
            raise InvalidJobError(f"a file URL needs an absolute path, as in file:///var/lib/app/queue, got {url!r}")
        return FileStorage(unquote(parts.path))
    from .redis.storage import RedisStorage

    return RedisStorage(url)
