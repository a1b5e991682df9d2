"""Checks of what users pass in. Each refusal names the field, what it got and what is allowed."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

from .errors import InvalidJobError
from .retry import MAX_SECONDS

MAX_ID_BYTES = 512
MAX_WORKER_ID_BYTES = 128
MAX_HEADERS_BYTES = 8 * 1024
MAX_ATTEMPTS = 1_000
MAX_RATE = 1_000_000
_RATE = re.compile(r"([0-9]{1,7})/([smhd])")
_UNITS_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_QUEUE_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
#: To call one of these makes an object and runs nothing.
_NOT_PLAIN = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def check_text(field: str, value: Any, max_bytes: int) -> str:
    """A str of 1 to ``max_bytes`` bytes of UTF-8 without control characters or lone surrogates."""
    # Nearly every id takes this way: printable ASCII holds neither control characters nor surrogates.
    if type(value) is str and value.isascii() and value.isprintable() and 0 < len(value) <= max_bytes:
        return value
    if not isinstance(value, str):
        raise InvalidJobError(f"{field} must be a str of 1-{max_bytes} bytes, got {type(value).__name__}")
    try:
        size = len(value) if value.isascii() else len(value.encode())
    except UnicodeEncodeError:
        raise InvalidJobError(
            f"{field} must be valid unicode, got a str with a lone surrogate: {value!a:.80}"
        ) from None
    if not 1 <= size <= max_bytes:
        raise InvalidJobError(f"{field} must be 1-{max_bytes} bytes of UTF-8, got a str of {size} bytes")
    if not value.isprintable() and _CONTROL.search(value):
        raise InvalidJobError(f"{field} must not hold control characters, got str {value!a:.80}")
    return value


def check_queue_name(value: Any) -> str:
    """1-64 characters of A-Z a-z 0-9 . _ -"""
    if not isinstance(value, str) or not _QUEUE_NAME.fullmatch(value):
        got = f"{value!a:.80}" if isinstance(value, str) else type(value).__name__
        raise InvalidJobError(f"queue name must be 1-64 characters of A-Z a-z 0-9 . _ - , got {got}")
    return value


def check_seconds(field: str, value: Any, *, zero: bool = False) -> float:
    """A finite number of seconds above zero (or, with ``zero``, at least zero)."""
    limit = f"a finite number of seconds {'>= 0' if zero else '> 0'}"
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidJobError(f"{field} must be {limit}, got {type(value).__name__}")
    # Compared, not converted: an int may be larger than every float.
    if not 0 <= value < math.inf or (value == 0 and not zero):
        raise InvalidJobError(f"{field} must be {limit}, got {_shown(value)}")
    if value > MAX_SECONDS:
        raise InvalidJobError(f"{field} must be at most 100 years in seconds, got {_shown(value)}")
    return value


def check_int(field: str, value: Any, low: int, high: int) -> int:
    """An int (not a bool) between ``low`` and ``high``."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidJobError(f"{field} must be an int from {low} to {high}, got {type(value).__name__}")
    if not low <= value <= high:
        raise InvalidJobError(f"{field} must be from {low} to {high}, got {_shown(value)}")
    return value


def check_rate(field: str, value: Any) -> tuple[int, int]:
    """``"100/s"``: a number of jobs per second, minute (m), hour or day; as jobs and milliseconds."""
    match = _RATE.fullmatch(value) if isinstance(value, str) else None
    if match is None or not 1 <= int(match[1]) <= MAX_RATE:
        got = f"{value!a:.80}" if isinstance(value, str) else type(value).__name__
        raise InvalidJobError(f"{field} must be 'N/s', 'N/m', 'N/h' or 'N/d' with N from 1 to {MAX_RATE}, got {got}")
    return int(match[1]), _UNITS_MS[match[2]]


def shown_rate(rate: int, rate_ms: int) -> str:
    """The text of which :func:`check_rate` made these numbers."""
    return f"{rate}/{next(unit for unit, ms in _UNITS_MS.items() if ms == rate_ms)}"


def check_ids(field: str, value: Any, most: int) -> tuple[str, ...]:
    """Up to ``most`` ids, each once."""
    ids = check_items(f"{field} must be a list of ids", value)
    for id in ids:
        check_text(f"each id of {field}", id, MAX_ID_BYTES)
    if len(ids) > most:
        raise InvalidJobError(f"{field} must hold at most {most} ids, got {len(ids)}")
    if len(set(ids)) < len(ids):
        raise InvalidJobError(
            f"{field} must hold each id once, got {next(id for id in ids if ids.count(id) > 1)!r} twice"
        )
    return ids


def check_at(value: Any) -> float:
    """An aware datetime or epoch seconds, as epoch seconds."""
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise InvalidJobError("at must be an aware datetime or epoch seconds, got a naive datetime")
        value = value.timestamp()
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidJobError(f"at must be an aware datetime or epoch seconds, got {type(value).__name__}")
    if not 0 <= value < 2**33:
        raise InvalidJobError(f"at must be epoch seconds between 0 and 2**33, got {_shown(value)}")
    return float(value)


def check_headers(value: Any) -> dict[str, str]:
    """A mapping of str to str, at most 8 KiB in all."""
    if not isinstance(value, Mapping):
        raise InvalidJobError(f"headers must be a mapping of str to str, got {type(value).__name__}")
    size = 0
    for key, item in value.items():
        if not isinstance(key, str) or not isinstance(item, str):
            raise InvalidJobError(
                f"headers must map str to str, got {type(key).__name__} to {type(item).__name__} at {key!r:.80}"
            )
        try:
            size += len(key.encode()) + len(item.encode())
        except UnicodeEncodeError:
            raise InvalidJobError(f"headers must be valid unicode, got a lone surrogate at {key!a:.80}") from None
    if size > MAX_HEADERS_BYTES:
        raise InvalidJobError(f"headers must be at most {MAX_HEADERS_BYTES} bytes, got {size}")
    return dict(value)


def check_function(field: str, value: Any) -> Callable[..., Any]:
    """Something that does its work when it is called."""
    if not callable(value):
        raise InvalidJobError(f"{field} must be a function, got {type(value).__name__}")
    if any(is_kind(each) for each in (value, type(value).__call__) for is_kind in _NOT_PLAIN):
        raise InvalidJobError(f"{field} must be a plain function, no generator and not async, got {value!r}")
    function: Callable[..., Any] = value
    return function


def check_items(field: str, value: Any) -> tuple[Any, ...]:
    """The items of an iterable; a str is none, it would come apart into its characters."""
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise InvalidJobError(f"{field}, got {type(value).__name__}")
    return tuple(value)


def _shown(value: float) -> str:
    """A number for a message; an int of thousands of digits cannot be printed."""
    return repr(value) if isinstance(value, float) or abs(value) < 2**64 else f"an int of {value.bit_length()} bits"


def to_ms(seconds: float) -> int:
    """Seconds of the API to milliseconds of a storage; a positive time never becomes zero."""
    return max(1, round(seconds * 1000)) if seconds > 0 else 0
