"""multipart/form-data (RFC 7578), for bodies that anybody may have written.

The standard library's ``email`` reads the headers of each part. It is not let near the bodies: its parser works line by
line, follows multiparts within multiparts, and forgives what a form never is. Finding the boundaries is a search in
linear time; the number of parts and the size of their headers are bounded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from email.errors import MessageError
from email.message import Message
from email.parser import HeaderParser

from .response import Problem

MAX_FIELDS = 1_000
MAX_PART_HEADERS_BYTES = 4 * 1024
#: A part has three parameters, and a file's name a few of these at most. Splitting a header at them is quadratic.
_MAX_SEMICOLONS = 50
_BOUNDARY = re.compile(r"[0-9A-Za-z'()+_,./:=? -]{0,69}[0-9A-Za-z'()+_,./:=?-]")


@dataclass(frozen=True, slots=True)
class Field:
    """One part of a form. ``filename`` is None for what is no file; it is what the client says, a path perhaps."""

    name: str
    filename: str | None
    content_type: str
    charset: str | None
    content: bytes


def parse_multipart(body: bytes, boundary: str | None) -> list[Field]:
    """The fields of a form in order; raises Problem(400)."""
    if boundary is None or not _BOUNDARY.fullmatch(boundary):
        raise _malformed("its boundary must be 1-70 characters of those that RFC 2046 allows")
    return [_field(part) for part in _parts(body, b"--" + boundary.encode())]


def _parts(body: bytes, delimiter: bytes) -> Iterator[bytes]:
    at = 0 if body.startswith(delimiter) else body.find(b"\r\n" + delimiter) + 2
    if at == 1:
        raise _malformed("its boundary does not occur")
    start = _after(body, at + len(delimiter))
    if start is None:
        raise _malformed("its first boundary is not followed by a line")
    if start < 0 and at > 0:
        raise _malformed("its first boundary is its last, and not at its start")
    count = 0
    inner = b"\r\n" + delimiter
    while start >= 0:
        count += 1
        if count > MAX_FIELDS:
            raise _malformed(f"it must have at most {MAX_FIELDS} fields")
        end, after = start - 2, None  # the line end before a part may be the one before the next boundary
        while after is None:  # a line that only begins like the boundary belongs to the content
            end = body.find(inner, end)
            if end < 0:
                raise _malformed("its last boundary is missing")
            end += len(inner)
            after = _after(body, end)
        yield body[start : max(start, end - len(inner))]
        start = after


def _after(body: bytes, at: int) -> int | None:
    """Where the part after a boundary begins: -1 when it was the last, None when it is none."""
    if body.startswith(b"--", at):
        return -1
    end = at
    while body[end : end + 1] in (b" ", b"\t"):
        end += 1
    return end + 2 if body.startswith(b"\r\n", end) else None


def _field(part: bytes) -> Field:
    end = part.find(b"\r\n\r\n", 0, MAX_PART_HEADERS_BYTES + 4)
    if end < 0:
        raise _malformed(f"a part has no headers, or more than {MAX_PART_HEADERS_BYTES} bytes of them")
    if part.count(b";", 0, end) > _MAX_SEMICOLONS:
        raise _malformed("the headers of a part have too many parameters")
    try:
        # As text: from bytes beyond ASCII the parser makes objects that are no str.
        headers = HeaderParser().parsestr(part[:end].decode())
        disposition = headers.get_content_disposition()
        parameters = parameters_of(headers, "content-disposition")
        name, filename = parameters.get("name"), parameters.get("filename")
        charset = parameters_of(headers, "content-type").get("charset")
        encoding = str(headers.get("content-transfer-encoding", "binary")).strip().lower()
    except UnicodeDecodeError:
        raise _malformed("the headers of a part must be UTF-8") from None
    except ValueError:
        raise _malformed("the headers of a part cannot be read") from None
    if disposition != "form-data" or name is None:
        raise _malformed("a part must have a Content-Disposition of form-data with a name")
    if encoding not in ("7bit", "8bit", "binary"):
        raise _malformed("a part must not have a Content-Transfer-Encoding (RFC 7578)")
    fallback = "text/plain" if filename is None else "application/octet-stream"
    content_type = headers.get_content_type() if "content-type" in headers else fallback
    return Field(name, filename, content_type, charset, part[end + 4 :])


def parameters_of(message: Message, header: str) -> dict[str, str]:
    """A header's parameters as text, whichever form they came in; of one that is repeated the first.

    Raises ValueError for those that are no text.
    """
    try:
        given = message.get_params([], header)
    except (MessageError, LookupError, TypeError, AttributeError) as error:  # what the parser makes of nonsense
        raise ValueError(f"{header} cannot be read") from error
    found: dict[str, str] = {}
    for name, value in given:
        if isinstance(value, tuple):  # RFC 2231: charset, language, value
            charset, _, text = value
            codec = "latin-1" if charset and charset.lower() == "iso-8859-1" else "utf-8"
            value = text.encode("latin-1").decode(codec)
        found.setdefault(name.lower(), value)
    return found


def _malformed(detail: str) -> Problem:
    return Problem(400, "multipart-invalid", f"the body is not a valid multipart form: {detail}")
