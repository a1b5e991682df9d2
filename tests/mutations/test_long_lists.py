"""I19 on a Redis list that is too long to be cleaned at once, so that the claim itself has to skip what is stale."""

from __future__ import annotations

from reliq.storage.redis.storage import RedisStorage
from reliq.testing.contract.steps import cancel, put, take

#: Lists of up to 1,000 entries are cleaned by the cancel itself.
LONG = 1_200


def test_i19_a_stale_entry_of_a_long_list_is_not_delivered(redis_url: str, redis_prefix: str) -> None:
    storage = RedisStorage(redis_url, prefix=redis_prefix)
    try:
        put(storage, "a", message=b"cancelled")
        put(storage, *(f"job-{n}" for n in range(LONG)))
        assert cancel(storage, "a") == "cancelled"
        put(storage, "a", message=b"last")
        first = take(storage, limit=1)
        assert [job.id for job in first] == ["job-0"]
        rest = [job.id for _ in range(2) for job in take(storage, limit=1_000)]
        assert rest == [*(f"job-{n}" for n in range(1, LONG)), "a"]
    finally:
        storage.close()
