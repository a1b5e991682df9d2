"""Values as people read them, in a terminal and in a browser: safe text, plain JSON values, times."""

from __future__ import annotations

import base64
import dataclasses
import re
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

#: Ids, errors and payloads come from anybody: nothing in them may steer a terminal, turn the text around or hide.
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff"
    "\U000e0000-\U000e007f]"
)
_LINES = re.compile("[\t\n]")


def safe(text: str, *, lines: bool = False) -> str:
    """Text without control characters, which show as escapes; with ``lines`` it may have several lines."""
    text = _UNSAFE.sub(lambda match: match[0].encode("unicode_escape", "surrogatepass").decode(), text)
    return text if lines else _LINES.sub(" ", text)


def plain(value: Any) -> Any:
    """What ``json`` can encode, for whatever jobs carry; what has no JSON form is told in words."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if value - value == 0 else str(value)  # NaN and infinities are no JSON
    if isinstance(value, bytes | bytearray | memoryview):
        data = bytes(value)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(data).decode()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if hasattr(value, "_asdict"):
        return plain(value._asdict())
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    return repr(value)


def span(value: float) -> str:
    """A time for people, in at most two units: ``0.4s``, ``59s``, ``5m``, ``1h 30m``, ``2d 4h``."""
    if value < 0:
        return f"-{span(-value)}"
    if value < 10:
        return f"{value:.1f}".removesuffix(".0") + "s"
    left = round(value)
    found: list[str] = []
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)):
        count, left = divmod(left, size)
        if count:
            found.append(f"{count}{unit}")
        elif found:
            break
        if len(found) == 2:
            break
    return " ".join(found)


def age(at: float) -> str:
    """How long ago ``at`` was, by this machine's clock. The clocks of storages may differ a little: never below 0."""
    return span(max(0.0, time.time() - at))


def left(at: float) -> str:
    """How long it is until ``at``, by this machine's clock; never below 0."""
    return span(max(0.0, at - time.time()))


def stamp(at: float) -> str:
    """A point in time for people, in UTC."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
