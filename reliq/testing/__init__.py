"""Tools for testing with reliq. Only ``StorageContract`` needs pytest; the fixtures are in ``reliq.pytest_plugin``."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .asserts import assert_enqueued
    from .clock import FakeClock
    from .contract import StorageContract
    from .isolation import isolated
    from .running import Ran, run_all, run_one
    from .simulator import Probe, Report, Scenario, simulate

__all__ = [
    "FakeClock",
    "Probe",
    "Ran",
    "Report",
    "Scenario",
    "StorageContract",
    "assert_enqueued",
    "isolated",
    "run_all",
    "run_one",
    "simulate",
]

_HOMES = {
    "FakeClock": ".clock",
    "Probe": ".simulator",
    "Ran": ".running",
    "Report": ".simulator",
    "Scenario": ".simulator",
    "StorageContract": ".contract",
    "assert_enqueued": ".asserts",
    "isolated": ".isolation",
    "run_all": ".running",
    "run_one": ".running",
    "simulate": ".simulator",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "StorageContract":
        # Only what is imported later has its assertions explained.
        import_module("pytest").register_assert_rewrite("reliq.testing.contract")
    value = getattr(import_module(_HOMES[name], __name__), name)
    globals()[name] = value
    return value
