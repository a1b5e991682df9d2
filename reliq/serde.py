"""Values to bytes and back. The bytes given to a storage are the bytes it returns."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import Any, Protocol, runtime_checkable

from .errors import SerdeError

load_json: Callable[[bytes], Any]
dump_json: Callable[[Any], bytes]
_dump_sorted: Callable[[Any], bytes]
try:
    import orjson
except ImportError:  # no wheel for this interpreter (free-threaded builds)
    load_json = json.loads

    def dump_json(value: Any, sort_keys: bool = False) -> bytes:
        """JSON in UTF-8, without spaces; raises TypeError or ValueError."""
        text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False, sort_keys=sort_keys)
        return text.encode()

    _dump_sorted = partial(dump_json, sort_keys=True)
    _HAS_ORJSON = False
else:
    load_json, dump_json = orjson.loads, orjson.dumps
    _dump_sorted = partial(orjson.dumps, option=orjson.OPT_SORT_KEYS)
    _HAS_ORJSON = True


@runtime_checkable
class Serde(Protocol):
    """What a queue needs to carry values: two methods, inverse of each other."""

    def dumps(self, value: Any) -> bytes:
        """Turn ``value`` into bytes; raise any exception when that is impossible."""
        ...

    def loads(self, data: bytes) -> Any:
        """Turn the bytes made by :meth:`dumps` back into a value."""
        ...


class JsonSerde:
    """JSON. Refuses what JSON would change silently: NaN, infinities, integers beyond 64 bits."""

    def dumps(self, value: Any) -> bytes:
        """Encode ``value``; raises SerdeError naming the place of the first value that does not fit."""
        return _encode(value, dump_json)

    def loads(self, data: bytes) -> Any:
        """Decode ``data``; raises SerdeError when it is not JSON."""
        try:
            return load_json(data)
        except (ValueError, RecursionError) as error:
            raise SerdeError(f"is not JSON: {error}") from error


class RawSerde:
    """Bytes as they are; str travels as UTF-8 and comes back as bytes."""

    def dumps(self, value: Any) -> bytes:
        """Return the bytes of ``value``; raises SerdeError for anything but bytes-like and str."""
        if isinstance(value, str):
            return value.encode()
        if isinstance(value, bytes | bytearray | memoryview):
            return bytes(value)
        if value is None:
            return b""
        raise SerdeError(f"must be bytes or str for RawSerde, got {type(value).__name__}")

    def loads(self, data: bytes) -> bytes:
        """Return ``data``."""
        return data


def as_bytes(data: Any) -> bytes:
    """What a serde's ``dumps`` returned, as bytes; raises SerdeError for what is no bytes."""
    if type(data) is bytes:
        return data
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    raise SerdeError(f"must be encoded as bytes by its serde, got {type(data).__name__}")


#: For what handlers report: people and dashboards read it, whatever the payloads are.
PROGRESS_SERDE = JsonSerde()


def content_id(payload: Any) -> str:
    """An id made of the payload's content: equal payloads (by JSON, keys sorted) give equal ids.

    32 hexadecimal characters of SHA-256.
    """
    if isinstance(payload, bytes | bytearray | memoryview):
        data = bytes(payload)
    else:
        data = _encode(payload, _dump_sorted, "payload: no content id, it ")
    return hashlib.sha256(data).hexdigest()[:32]


def _encode(value: Any, dump: Callable[[Any], bytes], whose: str = "") -> bytes:
    """What ``dump`` makes of ``value``; raises SerdeError, naming the place of the first value that it would change."""
    try:
        data = dump(value)
    except (TypeError, ValueError, RecursionError) as error:
        _refuse_lossy(value)
        raise SerdeError(f"{whose}cannot be encoded as JSON: {error}") from error
    # All that orjson changes without an error it writes as null; the search costs a twentieth of a look at
    # every value. The other encoder changes other things.
    if b"null" in data or not _HAS_ORJSON:
        _refuse_lossy(value)
    return data


_SCALARS = frozenset({str, bool, type(None)})
_MAX_DEPTH = 254


def _refuse_lossy(value: Any, path: str = "", depth: int = 0) -> None:
    """Raise SerdeError for numbers that JSON encoders change without an error."""
    kind = type(value)
    if kind in _SCALARS:
        return
    if kind is int:
        if not -(2**63) <= value < 2**64:
            raise _misfit(value, path)
    elif kind is float:
        if not math.isfinite(value):
            raise _misfit(value, path)
    elif kind is dict:
        if depth >= _MAX_DEPTH:
            raise SerdeError(f"nested deeper than {_MAX_DEPTH} levels")
        for key, item in value.items():
            if type(item) not in _SCALARS:
                _refuse_lossy(item, f"{path}[{key!r}]", depth + 1)
    elif kind is list or kind is tuple:
        if depth >= _MAX_DEPTH:
            raise SerdeError(f"nested deeper than {_MAX_DEPTH} levels")
        for index, item in enumerate(value):
            if type(item) not in _SCALARS:
                _refuse_lossy(item, f"{path}[{index}]", depth + 1)
    else:
        _refuse_lossy_other(value, path, depth)


def _refuse_lossy_other(value: Any, path: str, depth: int) -> None:
    """The same for what encoders take like one of the plain types: subclasses, enums, dataclasses."""
    if isinstance(value, Enum):
        _refuse_lossy(value.value, path, depth)
    elif isinstance(value, int):
        if not -(2**63) <= value < 2**64:
            raise _misfit(value, path)
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise _misfit(value, path)
    elif isinstance(value, dict):
        _refuse_lossy(dict(value), path, depth)
    elif isinstance(value, list | tuple):
        _refuse_lossy(list(value), path, depth)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        if depth >= _MAX_DEPTH:
            raise SerdeError(f"nested deeper than {_MAX_DEPTH} levels")
        # What is encoded are the attributes, also those that are no fields, and no fields that were never set.
        held = {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
        for name, item in (held | getattr(value, "__dict__", {})).items():
            _refuse_lossy(item, f"{path}.{name}", depth + 1)


def _misfit(value: float, path: str) -> SerdeError:
    if isinstance(value, float):
        return SerdeError(f"{path or 'value'}: {value} has no JSON form")
    # Its size in place of its digits: an int of thousands of digits cannot be printed.
    return SerdeError(f"{path or 'value'}: an integer of {value.bit_length()} bits does not fit in 64 bits")
