"""What is an extra says so when it is missing."""

from __future__ import annotations

import importlib
import sys

import pytest


@pytest.mark.parametrize(
    ("extra", "library"), [("prometheus", "prometheus_client"), ("opentelemetry", "opentelemetry")]
)
def test_a_missing_extra_is_named(extra: str, library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.delitem(sys.modules, f"reliq.contrib.{extra}", raising=False)
    with pytest.raises(ImportError, match=rf'pip install "reliq\[{extra}\]"'):
        importlib.import_module(f"reliq.contrib.{extra}")
