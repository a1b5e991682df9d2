"""What cannot be accepted is refused as InvalidJobError, whatever its type and size."""

from __future__ import annotations

import collections
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from enum import Enum
from typing import Any

import pytest

from reliq import Backoff, InvalidJobError, JsonSerde, MemoryStorage, Queue, Reaper, SerdeError, Storage, WorkerPool
from reliq.options import QueueOptions
from reliq.serde import content_id

HUGE = 10**400
#: More digits than Python prints.
UNPRINTABLE = 10**5000
UTC = timezone(timedelta(0))


@pytest.fixture
def memory() -> Iterator[MemoryStorage]:
    storage = MemoryStorage()
    yield storage
    storage.close()


@pytest.mark.parametrize(
    "options",
    [
        {"delay": HUGE},
        {"delay": UNPRINTABLE},
        {"delay": -UNPRINTABLE},
        {"delay": math.nan},
        {"delay": math.inf},
        {"delay": 1e12},
        {"at": HUGE},
        {"at": UNPRINTABLE},
        {"at": math.nan},
        {"at": datetime(1960, 1, 1, tzinfo=UTC)},
        {"at": datetime(9999, 1, 1, tzinfo=UTC)},
        {"max_attempts": UNPRINTABLE},
        {"priority": -UNPRINTABLE},
        {"result_ttl": HUGE},
        {"time_limit": UNPRINTABLE},
    ],
    ids=lambda options: next(iter(options)),
)
def test_a_job_option_out_of_range_is_refused(memory: MemoryStorage, options: Any) -> None:
    queue = Queue("q", memory)
    with pytest.raises(InvalidJobError, match=next(iter(options))):
        queue.enqueue("a", 1, **options)
    assert queue.get_status("a") is None


@pytest.mark.parametrize("field", ["base", "factor", "cap", "jitter"])
@pytest.mark.parametrize("value", [HUGE, UNPRINTABLE, -UNPRINTABLE, math.nan, math.inf, True, "1"], ids=type)
def test_a_backoff_out_of_range_is_refused(field: str, value: Any) -> None:
    with pytest.raises(InvalidJobError, match=field):
        Backoff(**{field: value})


@pytest.mark.parametrize("field", ["base", "cap"])
def test_a_backoff_is_at_most_100_years(field: str) -> None:
    century = 100 * 365.25 * 86400
    Backoff(**{field: century})
    with pytest.raises(InvalidJobError, match=field):
        Backoff(**{field: century * 1.01})
    assert max(Backoff(base=century, cap=century, jitter=1.0).delay(9) for _ in range(100)) <= century


@pytest.mark.parametrize("encoded", ["text", None, 5])
def test_a_payload_that_its_serde_does_not_turn_into_bytes_is_refused(memory: MemoryStorage, encoded: Any) -> None:
    class Odd(JsonSerde):
        def dumps(self, value: Any) -> Any:
            return encoded

    with pytest.raises(SerdeError, match=f"'q'.*bytes.*{type(encoded).__name__}"):
        Queue("q", memory, payload_serde=Odd()).enqueue("a", 1)


@pytest.mark.parametrize("cursor", ["garbage", "queued", "queued|x", "queued|1:x", f"queued|{10**30}:1", "queued|1", 5])
def test_a_cursor_from_elsewhere_is_refused(memory: MemoryStorage, cursor: Any) -> None:
    queue = Queue("q", memory)
    queue.enqueue("a", 1)
    with pytest.raises(InvalidJobError, match="cursor"):
        queue.jobs("queued", cursor=cursor)


def test_a_cursor_of_a_page_is_taken(storage: Storage) -> None:
    """The control."""
    queue = Queue("q", storage)
    queue.enqueue_many((f"{n}", 1) for n in range(3))
    queue.enqueue_many([])
    page = queue.jobs("queued", limit=2)
    assert [status.id for status in queue.jobs("queued", limit=2, cursor=page.cursor)] == ["2"]


@pytest.mark.parametrize(
    "make",
    [
        lambda _: WorkerPool(5),  # type: ignore[arg-type]
        lambda _: WorkerPool("abc"),  # type: ignore[arg-type]
        lambda _: WorkerPool(None),  # type: ignore[arg-type]
        lambda _: Reaper(None),  # type: ignore[arg-type]
        lambda _: Reaper("abc"),  # type: ignore[arg-type]
        lambda storage: Reaper(storage, "abc"),
        lambda storage: Reaper(storage, 5),  # type: ignore[arg-type]
        lambda storage: Reaper(storage, [5]),  # type: ignore[list-item]
    ],
)
def test_what_is_no_list_of_queues_is_refused(memory: MemoryStorage, make: Callable[[Storage], object]) -> None:
    with pytest.raises(InvalidJobError):
        make(memory)


def test_an_unknown_queue_option_is_refused_by_name() -> None:
    makers: list[Callable[..., object]] = [lambda **options: Queue("q", **options), QueueOptions]
    for make in makers:
        with pytest.raises(InvalidJobError, match=r"'unknown_option'; there are: .*max_attempts"):
            make(unknown_option=1)
    assert QueueOptions(max_attempts=2).max_attempts == 2


class Rows(list[Any]):
    pass


class Map(dict[str, Any]):
    pass


class Number(float):
    pass


class Whole(int):
    pass


class Colour(Enum):
    RED = math.nan


@dataclass
class Point:
    x: Any


@dataclass(slots=True)
class Slim:
    x: Any


Pair = collections.namedtuple("Pair", "a b")


@pytest.mark.parametrize(
    "value",
    [
        Rows([math.nan]),
        Map(a=math.inf),
        collections.OrderedDict(a=[math.nan]),
        collections.defaultdict(int, a=math.nan),
        Pair(1, math.nan),
        Point(math.nan),
        Slim(math.nan),
        Point({"a": [Slim(math.inf)]}),
        Number("nan"),
        [Whole(2**64)],
        Rows([2**64]),
        Colour.RED,
        UNPRINTABLE,
    ],
    ids=lambda value: type(value).__name__,
)
def test_json_refuses_what_it_would_change_in_every_container(value: Any) -> None:
    with pytest.raises(SerdeError):
        JsonSerde().dumps(value)
    with pytest.raises(SerdeError):
        content_id(value)


def test_json_names_the_place_in_a_dataclass() -> None:
    with pytest.raises(SerdeError, match=r"\.x\['a'\]\[0\]\.x: inf"):
        JsonSerde().dumps(Point({"a": [Slim(math.inf)]}))


def test_json_refuses_a_circle_of_dataclasses() -> None:
    point = Point(None)
    point.x = point
    with pytest.raises(SerdeError, match="nested"):
        JsonSerde().dumps(point)


def test_json_takes_subclasses_that_hold_plain_values() -> None:
    """The control."""
    assert JsonSerde().loads(JsonSerde().dumps([Rows([1.5]), Map(a=2), Whole(3)])) == [[1.5], {"a": 2}, 3]
