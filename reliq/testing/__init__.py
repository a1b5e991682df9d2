"""Tools for testing with reliq. They need pytest."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("reliq.testing.contract")

from .contract import StorageContract  # noqa: E402  (only what is imported later has its assertions explained)

__all__ = ["StorageContract"]
