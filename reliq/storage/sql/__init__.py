"""Storages on SQLite: this process's memory, and files."""

from __future__ import annotations

from .file import FileStorage
from .memory import MemoryStorage

__all__ = ["FileStorage", "MemoryStorage"]
