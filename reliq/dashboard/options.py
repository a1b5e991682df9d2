"""The options of a dashboard: one validated, frozen object."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import Any, Self, TypedDict

from ..errors import InvalidJobError
from ..http.response import is_header_value
from ..validate import check_items

#: From the WSGI environ to the id of who sent it, or None for nobody.
Authenticate = Callable[[dict[str, Any]], str | None]
#: By these names a browser reaches its own machine.
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
_HOST = re.compile(r"[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\]")


class AdapterArguments(TypedDict, total=False):
    """What ``Dashboard`` and every adapter take; :class:`DashboardOptions` explains them."""

    allow_actions: bool
    challenge: str
    show_payloads: bool
    hosts: Iterable[str] | None


class DashboardArguments(AdapterArguments, total=False):
    """Keyword arguments of ``Dashboard``."""

    authenticate: Authenticate | None


@dataclass(frozen=True, slots=True)
class DashboardOptions:
    """What a dashboard was told.

    ``allow_actions``: whether it may change anything; without, it only looks. ``authenticate(environ)`` returns a user
    id or None, which is 401 with ``challenge`` as its ``WWW-Authenticate``; without it anybody may. ``show_payloads``:
    whether payloads and results can be seen. ``hosts``: by which names it answers, without ports; None means any with
    ``authenticate`` and those of the loopback without, so that no page of another site can read it by a name
    of its own that leads to this machine (DNS rebinding).
    """

    allow_actions: bool = False
    authenticate: Authenticate | None = None
    challenge: str = 'Basic realm="reliq"'
    show_payloads: bool = False
    hosts: Iterable[str] | None = None

    def __new__(cls, *_: Any, **given: Any) -> Self:
        known = {field.name for field in fields(cls)}
        if unknown := given.keys() - known:
            raise InvalidJobError(f"no dashboard option {sorted(unknown)[0]!r}; there are: {', '.join(sorted(known))}")
        return object.__new__(cls)

    def __post_init__(self) -> None:
        for name in ("allow_actions", "show_payloads"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidJobError(f"{name} must be a bool, got {type(getattr(self, name)).__name__}")
        if self.authenticate is not None and not callable(self.authenticate):
            raise InvalidJobError(f"authenticate must be callable, got {type(self.authenticate).__name__}")
        if not is_header_value(self.challenge) or not self.challenge:
            raise InvalidJobError(f"challenge must be the text of a header, got {self.challenge!a:.80}")
        if self.hosts is not None:
            object.__setattr__(self, "hosts", tuple(map(_check_host, check_items("hosts must hold names", self.hosts))))

    @property
    def answered_hosts(self) -> frozenset[str] | None:
        """The names it answers by, in lower case; None for any."""
        if self.hosts is not None:
            return frozenset(host.lower() for host in self.hosts)
        return frozenset(LOOPBACK) if self.authenticate is None else None


def _check_host(value: Any) -> str:
    if not isinstance(value, str) or not _HOST.fullmatch(value):
        got = f"{value!a:.80}" if isinstance(value, str) else type(value).__name__
        raise InvalidJobError(f"hosts must hold names like 'jobs.example.org' or '[::1]', without a port, got {got}")
    return value
