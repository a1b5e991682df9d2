"""What goes back: documents and problems, all of them JSON."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from ..serde import JsonSerde

_JSON = JsonSerde()
#: Everything printable but ``%``, which marks what is encoded, and the quotes and comma that lists of values use.
_PLAIN_IN_HEADER = "!#$&'()*+-./:;<=>?@[]^_`{|}~"
_CONTROL = re.compile(r"[^\x20-\x7e]")


@dataclass(frozen=True, slots=True)
class Response:
    """One answer. ``headers`` are those of the wire, ``Content-Length`` and ``Content-Type`` among them."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes

    @property
    def status_line(self) -> str:
        """``"202 Accepted"``."""
        return f"{self.status} {HTTPStatus(self.status).phrase}"

    def without_body(self) -> Response:
        """The answer to HEAD: the same headers."""
        return Response(self.status, self.headers, b"")


def document(
    status: int, value: Any, headers: Iterable[tuple[str, str]] = (), content_type: str = "application/json"
) -> Response:
    """``value`` as JSON; raises SerdeError when it has no such form."""
    body = _JSON.dumps(value)
    fixed = (
        ("Content-Type", content_type),
        ("Content-Length", str(len(body))),
        ("Cache-Control", "no-store"),
        ("X-Content-Type-Options", "nosniff"),
    )
    return Response(status, (*fixed, *headers), body)


def no_content(headers: Iterable[tuple[str, str]]) -> Response:
    """204, for OPTIONS."""
    return Response(204, (("Cache-Control", "no-store"), *headers), b"")


class Problem(Exception):
    """Raised anywhere while a request is answered; becomes a problem body of RFC 9457.

    ``code`` is for programs and does not change, ``detail`` for people. ``members`` are further fields of the body.
    """

    def __init__(
        self, status: int, code: str, detail: str, headers: Iterable[tuple[str, str]] = (), **members: Any
    ) -> None:
        super().__init__(status, code, detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.headers = tuple(headers)
        self.members = members

    def response(self) -> Response:
        """The answer."""
        body = {
            "type": "about:blank",
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": self.detail.encode(errors="backslashreplace").decode(),  # it may quote a lone surrogate
            "code": self.code,
            **self.members,
        }
        return document(self.status, body, self.headers, "application/problem+json")


def id_header(id: str) -> tuple[str, str]:
    """``X-Job-Id``: percent-encoded UTF-8, so that no id can end the line or leave ASCII."""
    return "X-Job-Id", quote(id, safe=_PLAIN_IN_HEADER)


def is_header_value(value: Any) -> bool:
    """Whether ``value`` can stand in a header as it is."""
    return isinstance(value, str) and not _CONTROL.search(value)
