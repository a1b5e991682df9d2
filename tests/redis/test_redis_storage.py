"""RedisStorage beyond the contract: what it accepts, what it keeps to itself, what it leaves behind."""

from __future__ import annotations

import logging
import pickle
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from reliq import Backoff, InvalidJobError, NewJob, Queue, Reaper, State, StorageError, WorkerPool
from reliq.storage.base import MAX_BATCH
from reliq.storage.redis import scripts
from reliq.storage.redis.storage import RedisStorage
from reliq.storage.redis.wire import Wire

from ..servers import RedisServer

LUA = sorted(Path(scripts.__file__).parent.glob("*.lua"))
#: Files without a transition of their own: parts that transitions include, and the prelude.
PARTS = {"ends", "groups", "limits", "links", "prelude", "recovery", "registry", "removal", "side", "sweep", "vacancy"}
SECRET = "s3cr3t-pa55"


@pytest.fixture
def storage(redis_url: str, redis_prefix: str) -> Iterator[RedisStorage]:
    storage = RedisStorage(redis_url, prefix=redis_prefix)
    yield storage
    storage.close()


@pytest.fixture
def raw(redis_url: str) -> Iterator[Any]:
    client = redis.Redis.from_url(redis_url)
    yield client
    client.close()


# -- what it is made of ---------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["", "a{b", "a}b", "a b", "ä", "x" * 65, "a\n", 7, None])
def test_a_prefix_that_could_end_a_hash_tag_is_refused(prefix: Any) -> None:
    with pytest.raises(InvalidJobError, match="prefix"):
        RedisStorage("redis://localhost", prefix=prefix)


@pytest.mark.parametrize("prefix", ["a", "app:1", "my-app.prod_2", "x" * 64])
def test_ordinary_prefixes_are_taken(prefix: str) -> None:
    RedisStorage("redis://localhost", prefix=prefix).close()


def test_url_and_client_exclude_each_other() -> None:
    with pytest.raises(InvalidJobError, match="exactly one"):
        RedisStorage()
    with pytest.raises(InvalidJobError, match="exactly one"):
        RedisStorage("redis://localhost", client=object())
    with pytest.raises(InvalidJobError, match=r"redis\.Redis or RedisCluster"):
        RedisStorage(client=object())


@pytest.mark.parametrize("repeat_for", [0, -1, 30.1, 1e9])
def test_repeat_for_stays_below_the_life_of_tombstones(repeat_for: float) -> None:
    with pytest.raises(InvalidJobError, match="repeat_for"):
        RedisStorage("redis://localhost", repeat_for=repeat_for)


@pytest.mark.parametrize("url", ["redis+sentinel://localhost", "redis+sentinel://localhost:x/primary"])
def test_an_incomplete_url_is_refused_before_it_is_used(url: str) -> None:
    with pytest.raises(InvalidJobError):
        RedisStorage(url)


def test_a_database_number_and_percent_signs_in_a_url_are_understood(redis_url: str, redis_prefix: str) -> None:
    base = redis_url.rpartition("/")[0]
    first, second = RedisStorage(f"{base}/0", prefix=redis_prefix), RedisStorage(f"{base}/1", prefix=redis_prefix)
    try:
        Queue("q", first).enqueue("a")
        assert first.queues() == ["q"]
        assert second.queues() == []
    finally:
        first.close()
        second.close()


def test_nothing_connects_before_the_first_operation() -> None:
    storage = RedisStorage("redis://192.0.2.1:1/0")  # nobody is there
    q = Queue("q", storage)
    q.handler(lambda job: None)
    WorkerPool(q)
    storage.close()


# -- secrets --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        f"redis://user:{SECRET}@127.0.0.1:1/0",
        f"redis://:{SECRET}@127.0.0.1:1/0",
        f"redis://127.0.0.1:1/0?password={SECRET}",
        f"rediss://user:{SECRET}@127.0.0.1:1/0",
        f"redis+sentinel://user:{SECRET}@127.0.0.1:1/primary",
        f"redis+cluster://user:{SECRET}@127.0.0.1:1",
        f"valkey://user:{SECRET}@127.0.0.1:1",
    ],
)
def test_a_password_shows_nowhere(url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    storage = RedisStorage(url, repeat_for=0.01)
    q = Queue("q", storage)
    q.handler(lambda job: None)
    try:
        with pytest.raises(StorageError) as caught:
            q.enqueue("a")
        with WorkerPool(q, threads=1) as pool:
            shown = [repr(pool), repr(pool.queues)]
    finally:
        storage.close()
    chain: list[BaseException] = []
    error: BaseException | None = caught.value
    while error is not None:
        chain.append(error)
        error = error.__cause__ or error.__context__
    shown += [repr(storage), storage.url, repr(q), caplog.text, repr(pickle.loads(pickle.dumps(caught.value)))]
    shown += [f"{link} {link!r}" for link in chain]
    assert SECRET not in "\n".join(shown)


@pytest.mark.parametrize("url", [f"redis://u:{SECRET}@[::1", f"nosuch://u:{SECRET}@h"])
def test_a_url_that_cannot_be_read_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(ValueError) as caught:
        Queue("q", url).enqueue("a")
    assert SECRET not in str(caught.value)


# -- an existing client ---------------------------------------------------------------


def test_an_existing_client_is_left_alone(redis_url: str, redis_prefix: str) -> None:
    client = redis.Redis.from_url(redis_url, decode_responses=True, socket_timeout=1.25, max_connections=1, protocol=3)
    pool = client.connection_pool
    before = dict(pool.connection_kwargs)
    storage = RedisStorage(client=client, prefix=redis_prefix)
    try:
        q = Queue("q", storage)
        q.handler(lambda job: job.payload)
        with WorkerPool(q, threads=2):
            assert q.call("a", "payload", timeout=5) == "payload"
        assert client.connection_pool is pool
        assert pool.connection_kwargs == before
        # Its one connection was never used, so it is free.
        assert client.ping()
        assert client.get("nothing") is None
    finally:
        storage.close()
    assert client.ping()  # closing the storage does not close it
    client.close()


def test_passwords_and_database_of_a_client_are_taken_over(redis_url: str, redis_prefix: str) -> None:
    client = redis.Redis.from_url(redis_url.rpartition("/")[0] + "/1")
    storage = RedisStorage(client=client, prefix=redis_prefix)
    try:
        Queue("q", storage).enqueue("a")
        assert client.exists(f"{redis_prefix}:queues")
        client.delete(*client.keys(f"*{redis_prefix}*"))
    finally:
        storage.close()
        client.close()


# -- scripts --------------------------------------------------------------------------


def _header(path: Path) -> tuple[str, str]:
    lines = path.read_text("utf-8").splitlines()
    head = [line for line in lines if line.startswith("--")]
    end = next(n for n, line in enumerate(lines) if not line.startswith("--"))
    return "\n".join(head[:end]), "\n".join(lines[end:])


def _indexes(text: str) -> tuple[set[int], int | None]:
    """The ARGV numbers a header names, and from which on it takes any number of them."""
    numbers, rest = set(), None
    for first, more in re.findall(r"ARGV\[(\d+)(\.\.)?\]", text):
        if more:
            rest = int(first)
        else:
            numbers.add(int(first))
    return numbers, rest


@pytest.mark.parametrize("path", [path for path in LUA if path.stem not in PARTS], ids=lambda path: path.stem)
def test_the_header_of_a_script_says_what_its_body_uses(path: Path) -> None:
    header, body = _header(path)
    assert re.search(r"^-- KEYS\[1\] tag STRING", header, re.M)
    assert re.search(r"^-- ARGV\[1\] skew", header, re.M)
    assert re.search(r"^-- Returns ", header, re.M)
    assert "KEYS[" not in body, "keys are made of the tag, which the prelude reads"
    declared, rest = _indexes(header)
    assert declared == set(range(1, len(declared) + 1)), "numbered without a gap"
    assert rest in (None, len(declared) + 1)
    code = re.sub(r"--.*", "", body)
    used = {int(number) for number in re.findall(r"ARGV\[(\d+)\]", code)}
    computed = set(re.findall(r"ARGV\[([^\]\d][^\]]*|\d+ [^\]]*)\]", code))
    assert used <= declared, f"ARGV{sorted(used - declared)} is not in the header"
    # The prelude reads ARGV[1].
    assert declared - {1} <= used, f"ARGV{sorted(declared - {1} - used)} is in the header only"
    assert bool(computed) == (rest is not None), (computed, rest)


@pytest.mark.parametrize("path", [path for path in LUA if path.stem not in PARTS], ids=lambda path: path.stem)
def test_the_caller_sends_what_the_header_names(path: Path) -> None:
    """Every transition is sent by the Python side under its name."""
    package = path.parent
    sources = "\n".join(source.read_text("utf-8") for source in package.glob("*.py"))
    assert re.search(rf'(_run|run)\(\s*"{path.stem}"', sources), f"nobody runs {path.stem}.lua"


def test_parts_are_included_by_the_scripts_that_use_them() -> None:
    for path in LUA:
        if path.stem in PARTS:
            continue
        text = path.read_text("utf-8")
        first = text.partition("\n")[0]
        included = set(first.removeprefix("-- include:").split()) if first.startswith("-- include:") else set()
        needed: set[str] = set()
        todo = [text]
        while todo:
            for part in set(re.findall(r"\b(ends|recovery|registry|removal|sweep|vacancy)\(\)", todo.pop())) - needed:
                needed.add(part)
                todo.append((path.parent / f"{part}.lua").read_text("utf-8"))
        assert included == needed, path.name


#: The commands of Redis 6.2 and of every later server that transitions may use.
REDIS_62 = {
    "DEL", "EXISTS", "EXPIRE", "HDEL", "HEXISTS", "HGET", "HINCRBY", "HLEN", "HMGET", "HSCAN", "HSET", "LINDEX",
    "LLEN", "LPOP", "LPUSH", "LRANGE", "LREM", "LSET", "PEXPIRE", "PUBLISH", "RPUSH", "TIME", "UNLINK", "ZADD",
    "ZCARD", "ZMSCORE", "ZPOPMIN", "ZRANGE", "ZRANGEBYSCORE", "ZRANK", "ZREM", "ZSCORE", "PERSIST", "RENAME", "SADD",
    "SMEMBERS", "SREM", "BLPOP", "EVAL", "EVALSHA", "WAIT",
}  # fmt: skip


def test_only_commands_of_redis_6_2_are_used() -> None:
    used = set()
    for path in LUA:
        code = re.sub(r"--.*", "", path.read_text("utf-8"))
        used |= set(re.findall(r"redis\.p?call\('(\w+)'", code))
        used |= set(re.findall(r"and '(\w+)' or '(\w+)', key", code)[0] if "and 'LRANGE'" in code else ())
    for path in LUA[0].parent.glob("*.py"):
        used |= set(re.findall(r'(?:command|block|execute)\(\s*"([A-Z]+)"', path.read_text("utf-8")))
    assert used >= {"HSET", "ZADD", "LPOP", "EVALSHA", "BLPOP"}
    assert used <= REDIS_62, used - REDIS_62


def test_scripts_compile_within_the_limits_of_lua(raw: Any) -> None:
    """Lua 5.1 allows 200 locals and 60 upvalues: each script loads on the server as it is sent."""
    for path in LUA:
        if path.stem not in PARTS:
            found = scripts.script(path.stem)
            assert raw.script_load(found.text) in (found.sha, found.sha.encode())


# -- what stays behind ----------------------------------------------------------------


def test_an_enqueue_cancel_loop_on_a_paused_queue_stays_bounded(
    storage: RedisStorage, raw: Any, redis_prefix: str
) -> None:
    q = Queue("q", storage)
    q.pause()
    live = 200
    q.enqueue_many((f"live-{n}", n) for n in range(live))
    key = f"{{{redis_prefix}:q}}:pending"
    longest = 0
    for turn in range(40):
        ids = [f"gone-{turn}-{n}" for n in range(100)]
        q.enqueue_many((id, None) for id in ids)
        assert set(storage.cancel("q", ids)) == {"cancelled"}
        longest = max(longest, raw.llen(key))
    for _ in range(300):
        q.enqueue("one")
        assert q.cancel("one").status == "cancelled"
        longest = max(longest, raw.llen(key))
    assert longest <= 2 * (live + 100) + 1_000, longest
    assert raw.llen(key) <= 2 * live + 1_000
    q.resume()
    claimed = [job.id for job in q.claim(MAX_BATCH)]
    assert claimed == [f"live-{n}" for n in range(live)]


def test_when_every_ttl_ran_out_a_fixed_number_of_keys_remains(
    storage: RedisStorage, raw: Any, redis_prefix: str
) -> None:
    q = Queue("q", storage, result_ttl=60.0, dead_ttl=60.0, backoff=Backoff(base=0.0, jitter=0.0), max_attempts=2)

    @q.handler
    def fail_some(job: Any) -> Any:
        if job.payload % 3 == 0:
            raise ValueError("no")
        return job.payload

    with WorkerPool(q, threads=2) as pool:
        q.enqueue_many(NewJob(f"job-{n}", n, priority=n % 10, delay=0.0 if n % 2 else 0.01) for n in range(300))
        assert q.call("called", 1, timeout=10) == 1
        q.enqueue("scheduled", delay=3600.0)
        assert q.cancel("scheduled").status == "cancelled"
        pool.run_until_empty(20)
        # Scheduled ones do not count as unfinished.
        while q.counts()["completed"] + q.counts()["failed"] < 301:
            pool.run_until_empty(20)
    storage.skew_ms = 3_600_000
    reaper = Reaper(q)
    for _ in range(2):
        # First the records go, then the traces that they leave for a minute.
        for _ in range(5):
            reaper.run_once()
        storage.skew_ms += 120_000
    reaper.run_once()
    assert not any(q.counts().values())
    left = {key.decode() for key in raw.scan_iter(match=f"*{redis_prefix}*", count=1000)}
    tag = f"{{{redis_prefix}:q}}"
    # Doorbells hold one token at most; replies and stop lists go by their own expiry.
    assert left <= {f"{redis_prefix}:queues", f"{tag}:meta", f"{tag}:wake", f"{tag}:due-wake"}, left
    assert all(raw.llen(key) <= 1 for key in left if key.endswith("wake"))
    assert raw.hlen(f"{tag}:meta") < 20


def test_without_any_worker_memory_stays_bounded(storage: RedisStorage, raw: Any, redis_prefix: str) -> None:
    """Producers alone remove what has run out."""
    q = Queue("q", storage, result_ttl=1.0)
    tag = f"{{{redis_prefix}:q}}"
    for turn in range(30):
        q.enqueue_many((f"job-{turn}-{n}", None) for n in range(50))
        for job in q.claim(50):
            job.complete()
        q.cancel("none")
        storage.skew_ms += 70_000
    assert raw.hlen(f"{tag}:jobs") <= 200
    assert raw.hlen(f"{tag}:gone") <= 300
    assert raw.hlen(f"{tag}:results") <= 200


def test_counters_equal_the_truth(storage: RedisStorage, raw: Any, redis_prefix: str) -> None:
    q = Queue("q", storage, backoff=Backoff(base=30.0))
    q.enqueue_many(NewJob(f"job-{n}", n, priority=n % 3, delay=60.0 if n % 7 == 0 else None) for n in range(400))
    jobs = q.claim(120)
    for n, job in enumerate(jobs[:100]):
        if n % 5 == 0:
            job.complete()
        elif n % 5 == 1:
            job.release()
        elif n % 5 == 2:
            job.fail("no")
        elif n % 5 == 3:
            job.retry()
    for n in range(0, 400, 11):
        q.cancel(f"job-{n}")
    truth = dict.fromkeys(State, 0)
    for value in raw.hvals(f"{{{redis_prefix}:q}}:jobs"):
        truth[scripts.STATES[value[:1]]] += 1
    assert {state.value: truth[state] for state in State if state is not State.ABSENT} == q.counts()
    assert sum(truth.values()) > 300
    purged = q.purge()
    assert purged == sum(truth.values()) - truth[State.PROCESSING]
    assert {state: count for state, count in q.counts().items() if count} == {"processing": truth[State.PROCESSING]}


def test_bytes_stay_as_they_are_in_ids_and_payloads(storage: RedisStorage) -> None:
    q = Queue("q", storage)
    ids = ["user:123", "a:exp", "../../x", "{x}", "*", "é", "e\u0301", "ｅ", "0", "-1:x", " ", "x" * 512]
    q.enqueue_many((id, id) for id in ids)
    assert [job.id for job in q.claim(MAX_BATCH)] == ids[:1] or len(q.jobs(limit=1000)) == len(ids)
    assert {id for id, status in q.get_statuses(ids).items() if status is None} == set()


def test_a_server_that_is_too_old_or_absent_is_a_typed_error() -> None:
    with RedisServer() as server:
        url = server.url
    storage = RedisStorage(url, repeat_for=0.05)
    try:
        with pytest.raises(StorageError, match="does not answer"):
            Queue("q", storage).enqueue("a")
    finally:
        storage.close()


def test_calls_set_no_timeout_of_a_socket_anew(
    redis_url: str, redis_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each would be four system calls with the GIL held; a shorter time than before is set, and then the old one."""
    done = RedisStorage(redis_url, prefix=redis_prefix)
    storage = RedisStorage(redis_url, prefix=redis_prefix)
    worker = Queue("q", done)
    worker.handler(lambda job: job.payload)
    timeouts: list[float] = []
    set_timeout = Wire.set_timeout

    def note(of: Wire, timeout: float) -> None:
        if threading.current_thread() is threading.main_thread():
            timeouts.append(timeout)
        set_timeout(of, timeout)

    with WorkerPool(worker, threads=1), Queue("q", storage) as q:
        q.call("warm-1", 1)
        monkeypatch.setattr(Wire, "set_timeout", note)
        for n in range(5):
            assert q.call(f"job-{n}", n) == n
        assert timeouts == []
        q.call("job-short", 1, timeout=2)
        q.call("job-long", 1)
        assert len(timeouts) == 4
        assert max(timeouts[:2]) < 3 < min(timeouts[2:])
    storage.close()
    done.close()


def test_the_package_imports_no_client_before_it_is_needed() -> None:
    lines = [
        "import sys, reliq",
        "reliq.Queue('q', 'redis://localhost')",
        "print({'redis', 'watchdog'} & set(sys.modules))",
    ]
    code = "\n".join(lines)
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert answer.stdout.strip() == "set()"
