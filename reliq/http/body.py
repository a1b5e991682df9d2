"""A request's body, read within its limit and turned into a payload by its media type."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Sequence
from email.message import Message
from typing import Any
from urllib.parse import parse_qsl

from ..errors import InvalidJobError, SerdeError
from ..serde import JsonSerde
from .multipart import MAX_FIELDS, Field, parameters_of, parse_multipart
from .response import Problem

DEFAULT_ACCEPTS = ("application/json", "application/x-www-form-urlencoded", "multipart/form-data", "text/*")
_JSON = JsonSerde()
_CHUNK = 64 * 1024
_DIGITS = re.compile(r"[0-9]{1,18}")
_MEDIA_TYPE = re.compile(r"[a-z0-9!#$&^_.+-]{1,100}/(?:[a-z0-9!#$&^_.+-]{1,100}|\*)")
_MAX_CONTENT_TYPE = 1024
#: No others: Python knows codecs that are slow on purpose-made input, and some that are no charsets.
_CHARSETS = {
    "utf-8": "utf-8",
    "utf8": "utf-8",
    "us-ascii": "ascii",
    "ascii": "ascii",
    "iso-8859-1": "latin-1",
    "latin1": "latin-1",
    "windows-1252": "cp1252",
}


class ContentType:
    """A Content-Type header: ``media_type`` in lower case, ``"*/*"`` for what is none; its parameters."""

    def __init__(self, value: str) -> None:
        media_type = value.partition(";")[0].strip().lower()
        is_text = len(value) <= _MAX_CONTENT_TYPE and value.isascii() and value.isprintable()
        is_valid = is_text and "*" not in media_type and _MEDIA_TYPE.fullmatch(media_type)
        self.media_type = media_type if is_valid else "*/*"
        self._message = Message()
        if self.media_type != "*/*":
            self._message["content-type"] = value

    def parameter(self, name: str) -> str | None:
        """A parameter's value, None when there is none or it cannot be read."""
        try:
            return parameters_of(self._message, "content-type").get(name)
        except ValueError:
            return None


def check_accepts(accepts: Iterable[Any]) -> tuple[str, ...]:
    """Media types that can be read; raises InvalidJobError for another."""
    checked = tuple(accepts)
    for media_type in checked:
        if not isinstance(media_type, str) or not _MEDIA_TYPE.fullmatch(media_type) or _kind(media_type) is None:
            raise InvalidJobError(
                f"accepts must hold types like {', '.join(DEFAULT_ACCEPTS)} or ...+json, got {media_type!a:.80}"
            )
    if not checked:
        raise InvalidJobError("accepts must hold at least one media type, got none")
    return checked


def read_payload(environ: dict[str, Any], accepts: Sequence[str], limit: int) -> Any:
    """The payload of a request; None when it has neither body nor Content-Type. Raises Problem.

    (wsgiref calls a body text/plain of which nobody said anything: there it is an empty str.)
    What cannot be accepted by its type or declared length is refused before anything is read.
    """
    if environ.get("HTTP_CONTENT_ENCODING", "identity").strip().lower() != "identity":
        raise _unsupported("no compressed bodies", accepts)
    given = environ.get("CONTENT_TYPE") or ""
    if not given:
        if read_body(environ, limit):
            raise _unsupported("a body needs a Content-Type", accepts)
        return None
    content_type = ContentType(given)
    kind = _kind(content_type.media_type)
    family = content_type.media_type.partition("/")[0] + "/*"
    if kind is None or not (content_type.media_type in accepts or family in accepts):
        raise _unsupported(f"no bodies of this type: {given:.100}", accepts)
    charset = _charset(content_type.parameter("charset"), accepts)
    if kind == "json":
        if charset not in ("utf-8", "ascii"):
            raise _unsupported("JSON must be UTF-8 (RFC 8259)", accepts)
        return _read_json(read_body(environ, limit))
    if kind == "form":
        return _read_form(read_body(environ, limit), charset)
    if kind == "multipart":
        fields = parse_multipart(read_body(environ, limit), content_type.parameter("boundary"))
        return _collect((field.name, _value(field)) for field in fields)
    return _decode(read_body(environ, limit), charset)


def read_body(environ: dict[str, Any], limit: int) -> bytes:
    """The body, at most ``limit`` bytes. Raises Problem: 400, 411 or 413."""
    declared = environ.get("CONTENT_LENGTH") or ""
    length: int | None = 0
    if environ.get("HTTP_TRANSFER_ENCODING") or (not declared and environ.get("wsgi.input_terminated")):
        if not environ.get("wsgi.input_terminated"):  # nobody could say where it ends
            raise Problem(411, "length-required", "this server takes no chunked body: send a Content-Length")
        length = None
    elif declared:
        if not _DIGITS.fullmatch(declared):
            raise Problem(400, "length-invalid", "Content-Length must be a number of bytes")
        length = int(declared)
        if length > limit:
            raise too_large(limit)
    body = _read(environ["wsgi.input"], limit + 1 if length is None else length)
    if len(body) > limit:
        raise too_large(limit)
    if length is not None and len(body) < length:
        raise Problem(400, "body-incomplete", f"the body ended after {len(body)} of {length} bytes")
    return body


def _read(stream: Any, most: int) -> bytes:
    chunks: list[bytes] = []
    left = most
    while left > 0:
        try:
            chunk = stream.read(min(left, _CHUNK))
        except Exception as error:  # each server has its own for a client that hung up or chunks that are none
            raise Problem(400, "body-unreadable", "the body could not be read to its end") from error
        if not chunk:
            break
        chunks.append(chunk)
        left -= len(chunk)
    return b"".join(chunks)


def too_large(limit: int) -> Problem:
    """413."""
    return Problem(413, "too-large", f"the body must be at most {limit} bytes", limit=limit)


def _unsupported(detail: str, accepts: Sequence[str]) -> Problem:
    listed = ", ".join(accepts)
    return Problem(415, "unsupported-type", f"{detail}; accepted: {listed}", [("Accept-Post", listed)])


def _charset(name: str | None, accepts: Sequence[str]) -> str:
    if name is None:
        return "utf-8"
    if (codec := _CHARSETS.get(name.strip().lower())) is None:
        raise _unsupported(f"no bodies in this charset: {name:.40}", accepts)
    return codec


# -- one reader per kind of body --------------------------------------------------------


def _kind(media_type: str) -> str | None:
    if media_type == "application/json" or (media_type.startswith("application/") and media_type.endswith("+json")):
        return "json"
    if media_type == "application/x-www-form-urlencoded":
        return "form"
    if media_type == "multipart/form-data":
        return "multipart"
    return "text" if media_type.startswith("text/") else None


def _read_json(body: bytes) -> Any:
    try:
        return _JSON.loads(body)
    except SerdeError as error:
        raise Problem(400, "json-invalid", f"the body {error}") from error


def _read_form(body: bytes, charset: str) -> dict[str, Any]:
    try:
        pairs = parse_qsl(
            body.decode("ascii"), keep_blank_values=True, encoding=charset, errors="strict", max_num_fields=MAX_FIELDS
        )
    except UnicodeError:
        raise Problem(400, "form-invalid", f"the form must be percent-encoded {charset}") from None
    except ValueError:
        raise Problem(400, "form-invalid", f"the form must have at most {MAX_FIELDS} fields") from None
    return _collect(pairs)


def _value(field: Field) -> Any:
    if field.filename is None:
        return _decode(field.content, _charset(field.charset, ("multipart/form-data",)))
    return {
        "filename": field.filename,
        "content_type": field.content_type,
        "size": len(field.content),
        "content": base64.b64encode(field.content).decode(),
    }


def _decode(data: bytes, charset: str) -> str:
    try:
        return data.decode(charset)
    except UnicodeDecodeError as error:
        raise Problem(400, "text-invalid", f"the text is not {charset}: byte {error.start}") from None


def _collect(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """A name that was given once has its value, one that was repeated a list."""
    found: dict[str, list[Any]] = {}
    for name, value in pairs:
        found.setdefault(name, []).append(value)
    return {name: values[0] if len(values) == 1 else values for name, values in found.items()}
