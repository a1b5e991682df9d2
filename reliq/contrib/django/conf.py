"""``settings.RELIQ``, checked. What is wrong raises ImproperlyConfigured and says where.

::

    RELIQ = {
        "URL": "redis://localhost:6379/0",   # default: the environment variable RELIQ_URL
        "ON_COMMIT": True,                   # a database alias, True (the default database) or False
        "QUEUES": {                          # default: one queue named "default"
            "default": {},
            "emails": {"max_attempts": 5},   # lower case: the options of reliq.Queue
            "audit": {"ON_COMMIT": False, "URL": "file:///var/lib/shop/audit"},
        },
    }
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from ...errors import InvalidJobError
from ...queue import Queue

_TOP = ("ON_COMMIT", "QUEUES", "URL")
_OF_A_QUEUE = ("ON_COMMIT", "URL")


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """One queue's: ``on_commit`` is the alias of the database whose commits enqueue, None: at once."""

    name: str
    url: str | None
    on_commit: str | None
    options: Mapping[str, Any]

    def make(self) -> Queue:
        """A queue of them, bound to nothing of Django's yet."""
        return Queue(self.name, self.url, **self.options)


def read_queues() -> dict[str, QueueSettings]:
    """The settings of each queue, by its name."""
    top = _mapping("RELIQ", getattr(settings, "RELIQ", {}))
    _known("RELIQ", top, _TOP)
    queues = _mapping("RELIQ['QUEUES']", top.get("QUEUES", {"default": {}}))
    return {name: read_queue(f"RELIQ['QUEUES'][{name!r}]", name, given) for name, given in queues.items()}


def read_queue(where: str, name: str, given: Any) -> QueueSettings:
    """One queue's settings, those of all queues filled in; ``where`` they stand is for errors."""
    top = _mapping("RELIQ", getattr(settings, "RELIQ", {}))
    given = _mapping(where, given)
    options = {key: value for key, value in given.items() if not (isinstance(key, str) and key.isupper())}
    _known(where, {key: value for key, value in given.items() if key not in options}, _OF_A_QUEUE)
    on_commit = given.get("ON_COMMIT", top.get("ON_COMMIT", True))
    made = QueueSettings(name, given.get("URL", top.get("URL")), _alias(where, on_commit), options)
    try:
        made.make()
    except (InvalidJobError, TypeError) as error:
        raise ImproperlyConfigured(f"{where}: {error}") from error
    return made


def _alias(where: str, value: Any) -> str | None:
    if value is None or value is False:
        return None
    alias = "default" if value is True else value
    known = {"default", *settings.DATABASES}
    if alias not in known:
        raise ImproperlyConfigured(
            f"{where}: ON_COMMIT must be True, False or one of the databases {', '.join(sorted(known))}, got {value!r}"
        )
    return str(alias)


def _mapping(where: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ImproperlyConfigured(f"{where} must be a dict, got {type(value).__name__}")
    return value


def _known(where: str, given: Mapping[str, Any], allowed: tuple[str, ...]) -> None:
    for key in given:
        if key not in allowed:
            raise ImproperlyConfigured(f"{where} has no key {key!r}; there are: {', '.join(allowed)}")
