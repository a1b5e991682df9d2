"""Times as people type them: ``30s``, ``5m``, ``1h30m``; the one place that parses them."""

from __future__ import annotations

import argparse
import re
from datetime import datetime

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|[smhdw])")
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?")
_FORMS = "seconds, or a time such as 30s, 5m, 1h30m, 2d"


def seconds(text: str) -> float:
    """An argparse type: a time of zero or more."""
    if _NUMBER.fullmatch(text):
        return float(text)
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise argparse.ArgumentTypeError(f"must be {_FORMS}, got {text!r}")
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


def positive_seconds(text: str) -> float:
    """An argparse type: a time above zero."""
    value = seconds(text)
    if value <= 0:
        raise argparse.ArgumentTypeError(f"must be {_FORMS} above 0, got {text!r}")
    return value


def moment(text: str) -> float:
    """An argparse type: epoch seconds, or ISO 8601 with a zone; as epoch seconds."""
    if _NUMBER.fullmatch(text):
        return float(text)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"must be epoch seconds or ISO 8601, as 2027-01-31T08:00:00+01:00, got {text!r}"
        ) from None
    if found.tzinfo is None:
        raise argparse.ArgumentTypeError(f"must name its zone, as {text}Z for UTC or {text}+01:00")
    return found.timestamp()


# argparse shows these names where float() and the like refuse.
seconds.__name__, positive_seconds.__name__, moment.__name__ = "time", "time", "point in time"
