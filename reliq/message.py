"""The stored envelope of a job: what its handler needs and no transition changes.

Layout: one byte format version, a two-byte little-endian header length, the header
(JSON, empty for a job without options), the payload bytes as given.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple

from .errors import InvalidJobError, StorageCorruptError
from .retry import MAX_SECONDS, Backoff
from .serde import dump_json, load_json

FORMAT = 1
#: What its length, two bytes, can say.
MAX_HEADER_BYTES = 0xFFFF
_PLAIN = bytes((FORMAT, 0, 0))
_DEFAULT_BACKOFF = Backoff()
_ONLY_STR = {str}


class Message(NamedTuple):
    """A decoded envelope."""

    payload: bytes
    headers: Mapping[str, str] = MappingProxyType({})
    time_limit: float | None = None
    backoff: Backoff = _DEFAULT_BACKOFF
    after: tuple[str, ...] = ()


def head(
    headers: dict[str, str] | None = None,
    time_limit: float | None = None,
    backoff: Backoff = _DEFAULT_BACKOFF,
    after: tuple[str, ...] = (),
) -> bytes:
    """What stands before the payload. Options that have their default take no space.

    Raises InvalidJobError when headers and ids take more than 64 KiB together.
    """
    if not headers and time_limit is None and not after and backoff == _DEFAULT_BACKOFF:
        return _PLAIN
    options: dict[str, Any] = {}
    if headers:
        options["headers"] = headers
    if time_limit is not None:
        options["time_limit"] = time_limit
    if backoff != _DEFAULT_BACKOFF:
        options["backoff"] = [backoff.base, backoff.factor, backoff.cap, backoff.jitter]
    if after:
        options["after"] = after
    header = dump_json(options)
    if len(header) > MAX_HEADER_BYTES:
        raise InvalidJobError(
            f"the ids of after and the headers must take at most {MAX_HEADER_BYTES} bytes together, got {len(header)}"
        )
    return bytes((FORMAT,)) + len(header).to_bytes(2, "little") + header


def encode(
    payload: bytes,
    headers: dict[str, str] | None = None,
    time_limit: float | None = None,
    backoff: Backoff = _DEFAULT_BACKOFF,
    after: tuple[str, ...] = (),
) -> bytes:
    """Pack an envelope."""
    return head(headers, time_limit, backoff, after) + payload


def decode(data: bytes) -> Message:
    """Unpack an envelope; raises StorageCorruptError when it is not one."""
    if data[:3] == _PLAIN:
        return Message(data[3:])
    if len(data) < 3 or data[0] != FORMAT:
        raise StorageCorruptError(f"the stored message has format {data[:1]!r}; this version of reliq reads {FORMAT}")
    end = 3 + int.from_bytes(data[1:3], "little")
    try:
        headers, time_limit, backoff, after = _options(bytes(data[3:end]))
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise StorageCorruptError(f"the stored message's header cannot be read: {error}") from error
    return Message(data[end:], headers.copy(), time_limit, backoff, after)  # a handler may change its own headers


@lru_cache(32)  # jobs of one queue, or enqueued together, mostly have the same ones
def _options(header: bytes) -> tuple[dict[str, str], float | None, Backoff, tuple[str, ...]]:
    options = load_json(header)
    return (
        _headers(options.get("headers", {})),
        _time_limit(options.get("time_limit")),
        Backoff(*options["backoff"]) if "backoff" in options else _DEFAULT_BACKOFF,
        _after(options.get("after", [])),
    )


def _headers(value: Any) -> dict[str, str]:
    # Keys of a JSON object are str.
    if isinstance(value, dict) and set(map(type, value.values())) <= _ONLY_STR:
        return value
    raise ValueError("its headers are no map of str to str")


def _after(value: Any) -> tuple[str, ...]:
    if isinstance(value, list) and all(isinstance(id, str) for id in value):
        return tuple(value)
    raise ValueError("its after is no list of ids")


def _time_limit(value: Any) -> float | None:
    # A bool is an int, but never one of seconds.
    if value is None or (type(value) in (int, float) and 0 < value <= MAX_SECONDS):
        return value  # type: ignore[no-any-return]
    raise ValueError("its time_limit is no number of seconds")
