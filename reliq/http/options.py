"""The options of an endpoint: one validated, frozen object."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Self, TypedDict

from ..errors import InvalidJobError
from ..options import MAX_PAYLOAD_BYTES
from ..validate import check_int, check_items, check_seconds
from .body import DEFAULT_ACCEPTS, check_accepts
from .response import is_header_value
from .route import Route

#: From the WSGI environ to the id of who sent it, or None for nobody.
Authenticate = Callable[[dict[str, Any]], str | None]


class AdapterArguments(TypedDict, total=False):
    """What ``endpoint`` and every adapter take; :class:`EndpointOptions` explains them."""

    route: str
    accepts: Sequence[str]
    challenge: str
    private: bool
    max_body: int | None
    max_wait: float
    show_errors: bool
    job_options: Mapping[str, Any]


class EndpointArguments(AdapterArguments, total=False):
    """Keyword arguments of ``endpoint``; :class:`EndpointOptions` explains them."""

    authenticate: Authenticate | None


@dataclass(frozen=True, slots=True)
class EndpointOptions:
    """What an endpoint was told.

    ``route`` is the pattern of its paths. ``accepts`` are the media types of bodies, ``text/*`` for a whole family.
    ``authenticate(environ)`` returns a user id or None, which is 401 with ``challenge`` as its ``WWW-Authenticate``;
    without it anybody may. ``private`` keeps the jobs of its users apart. ``max_body`` is in bytes, by default the
    queue's ``max_payload_bytes``. ``max_wait`` bounds ``?wait=``, which holds a thread of the server; 0 turns
    waiting off. ``show_errors`` tells clients the text of a failed job's error, never its traceback. ``job_options``
    are arguments of ``enqueue`` for every job.
    """

    route: str = "/"
    accepts: Sequence[str] = DEFAULT_ACCEPTS
    authenticate: Authenticate | None = None
    challenge: str = "Bearer"
    private: bool = True
    max_body: int | None = None
    max_wait: float = 30.0
    show_errors: bool = False
    job_options: Mapping[str, Any] = field(default_factory=dict)

    def __new__(cls, *_: Any, **given: Any) -> Self:
        known = {field.name for field in fields(cls)}
        if unknown := given.keys() - known:
            raise InvalidJobError(f"no endpoint option {sorted(unknown)[0]!r}; there are: {', '.join(sorted(known))}")
        return object.__new__(cls)

    def __post_init__(self) -> None:
        Route(self.route)
        check_accepts(check_items("accepts must hold media types", self.accepts))
        if self.authenticate is not None and not callable(self.authenticate):
            raise InvalidJobError(f"authenticate must be callable, got {type(self.authenticate).__name__}")
        if not is_header_value(self.challenge) or not self.challenge:
            raise InvalidJobError(f"challenge must be the text of a header, got {self.challenge!a:.80}")
        for name in ("private", "show_errors"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidJobError(f"{name} must be a bool, got {type(getattr(self, name)).__name__}")
        if self.max_body is not None:
            # Twice what a payload may be: the same value has longer forms in JSON and in forms.
            check_int("max_body", self.max_body, 1, 2 * MAX_PAYLOAD_BYTES)
        check_seconds("max_wait", self.max_wait, zero=True)
        if not isinstance(self.job_options, Mapping):
            raise InvalidJobError(f"job_options must be a mapping, got {type(self.job_options).__name__}")
