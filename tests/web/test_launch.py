"""Which queues the worker command of a framework runs."""

from __future__ import annotations

import pytest

from reliq import Queue
from reliq.cli.common import UsageError
from reliq.contrib.launch import chosen


@pytest.fixture
def queues() -> list[Queue]:
    found = [Queue(name) for name in ("a", "b", "c")]
    for queue in found[:2]:
        queue.execute(print)
    return found


@pytest.mark.parametrize(("named", "names"), [("", ["a", "b"]), ("b", ["b"]), ("b a", ["a", "b"])])
def test_those_that_are_named_else_those_with_a_handler(
    queues: list[Queue], monkeypatch: pytest.MonkeyPatch, named: str, names: list[str]
) -> None:
    monkeypatch.setenv("RELIQ_WORKER_QUEUES", named)
    assert [queue.name for queue in chosen(queues)] == names


@pytest.mark.parametrize(
    ("named", "message"),
    [("d", "no queue 'd'; there are: a, b, c"), ("a c", "queue 'c' has no handler: decorate a function")],
)
def test_what_cannot_be_run_is_told(
    queues: list[Queue], monkeypatch: pytest.MonkeyPatch, named: str, message: str
) -> None:
    monkeypatch.setenv("RELIQ_WORKER_QUEUES", named)
    with pytest.raises(UsageError, match=message):
        chosen(queues)


def test_no_handler_at_all_is_told(queues: list[Queue], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RELIQ_WORKER_QUEUES", raising=False)
    with pytest.raises(UsageError, match="no queue has a handler; there are: c"):
        chosen(queues[2:])
    with pytest.raises(UsageError, match="no queue has a handler; there are: none"):
        chosen([])
