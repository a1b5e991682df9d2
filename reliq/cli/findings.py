"""What a look over a storage finds: each thing with how bad it is and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """``PROBLEM``: jobs are or will be lost, or commands fail. ``WARNING``: think about it."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. ``advice``: what to do, empty when nothing."""

    level: Level
    check: str
    text: str
    advice: str = ""


def ok(check: str, text: str) -> Finding:
    """All is well."""
    return Finding(Level.OK, check, text)


def warning(check: str, text: str, advice: str) -> Finding:
    """It works, and may hurt."""
    return Finding(Level.WARNING, check, text, advice)


def problem(check: str, text: str, advice: str) -> Finding:
    """It must be mended."""
    return Finding(Level.PROBLEM, check, text, advice)
