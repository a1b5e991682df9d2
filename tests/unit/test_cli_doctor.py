"""`reliq doctor` and `reliq reap`: what is found, how bad it is, what to do; nothing is changed by looking."""

from __future__ import annotations

import json
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from reliq import MemoryStorage, Queue, StorageUnavailableError
from reliq.cli import audit, doctor_files, doctor_redis
from reliq.cli.doctor_redis import examine
from reliq.cli.findings import Finding, Level
from reliq.cli.main import main
from reliq.lifecycle import State
from reliq.storage.base import Snapshot, Worker


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RELIQ_URL", "RELIQ_APP"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{tmp_path / 'queue'}"


def _findings(capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, Any]]:
    return {found["check"]: found for found in map(json.loads, capsys.readouterr().out.splitlines())}


# -- files --------------------------------------------------------------------------------


def test_a_sound_store_has_no_problems(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    with Queue("emails", url) as queue:
        queue.enqueue("a")
    assert main(["doctor", "--url", url, "--json"]) == 0
    found = _findings(capsys)
    assert found["live data"]["level"] == "ok"
    assert "1 job(s) in 1 queue(s)" in found["live data"]["text"]
    assert found["workers of emails"]["level"] == "warning"
    assert {"file system", "free space", "rights", "inotify"} <= set(found)
    assert main(["doctor", "--url", url, "--no-audit"]) == 0
    out = capsys.readouterr().out
    assert "live data" not in out
    assert out.rstrip().endswith("0 problem(s)")


def test_a_damaged_store_is_a_problem(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import sqlite3

    with Queue("emails", url) as queue:
        queue.enqueue("a")
    connection = sqlite3.connect(tmp_path / "queue" / "queue.db")
    connection.execute("UPDATE job SET epoch = 7")
    connection.commit()
    connection.close()
    assert main(["doctor", "--url", url]) == 1
    out = capsys.readouterr().out
    assert "problem  live data: " in out
    assert "-> reliq check" in out


@pytest.mark.parametrize(
    ("kind", "level"),
    [("ext4", Level.OK), ("tmpfs", Level.WARNING), ("overlay", Level.WARNING), ("nfs4", Level.PROBLEM)],
)
def test_file_systems_are_judged(kind: str, level: Level, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "mountinfo").write_text(f"1 0 0:1 / / rw - {kind} none rw\n")
    monkeypatch.setattr(doctor_files, "_PROC", tmp_path)
    assert doctor_files._file_system(tmp_path).level is level


def test_inotify_limits_are_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = tmp_path / "sys/fs/inotify"
    limits.mkdir(parents=True)
    (limits / "max_user_watches").write_text("65536\n")
    fds = tmp_path / "4711" / "fd"
    fds.mkdir(parents=True)
    for number in range(9):
        (fds / str(number)).symlink_to("anon_inode:inotify")
    monkeypatch.setattr(doctor_files, "_PROC", tmp_path)
    for most, level in ((100, Level.OK), (10, Level.WARNING)):
        (limits / "max_user_instances").write_text(f"{most}\n")
        [finding] = doctor_files._inotify()
        assert (finding.level, "9 of " in finding.text) == (level, True)


def test_little_space_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for free, level in ((1 << 40, Level.OK), (500 << 20, Level.WARNING), (1 << 20, Level.PROBLEM)):
        monkeypatch.setattr("shutil.disk_usage", lambda _, free=free: _Usage(free))
        assert next(iter(doctor_files._space(tmp_path))).level is level


class _Usage:
    def __init__(self, free: int) -> None:
        self.total, self.free = 1 << 41, free


def test_a_dead_server_is_a_problem_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--url", "redis://user:s3cret@127.0.0.1:1/0", "--json"]) == 1
    found = _findings(capsys)
    assert found["storage"]["level"] == "problem"
    assert "s3cret" not in json.dumps(found)


# -- the settings of a server, as it tells them --------------------------------------------

_SOUND = {
    "redis_version": "7.0.15", "maxmemory": "0", "maxmemory_policy": "noeviction", "used_memory": "1000000",
    "aof_enabled": "1", "role": "master", "connected_slaves": "0",
}  # fmt: skip


class _Link:
    """A server that answers from a table."""

    is_cluster = False

    def __init__(self, info: dict[str, str], config: dict[str, str]) -> None:
        self._info, self._config = info, config

    def execute(self, *command: Any, **_: Any) -> tuple[Any, int]:
        if command[0] == "INFO":
            return "# Server\r\n" + "".join(f"{name}:{value}\r\n" for name, value in self._info.items()), 0
        value = self._config.get(command[2])
        return [] if value is None else [command[2].encode(), value.encode()], 0


def _settings(info: dict[str, str], config: dict[str, str]) -> dict[str, Finding]:
    server = doctor_redis._Server(_Link({**_SOUND, **info}, config))  # type: ignore[arg-type]
    return {finding.check: finding for finding in server.settings()}


@pytest.mark.parametrize(
    ("info", "config", "check", "level", "says"),
    [
        ({}, {"appendfsync": "always"}, "persistence", "ok", "every acknowledged job"),
        ({}, {"appendfsync": "everysec"}, "persistence", "ok", "last second"),
        ({}, {"appendfsync": "no"}, "persistence", "warning", "half a minute"),
        ({"aof_enabled": "0"}, {"save": "3600 1"}, "persistence", "warning", "snapshots only"),
        ({"aof_enabled": "0"}, {"save": ""}, "persistence", "problem", "a restart loses every job"),
        ({"aof_enabled": "0"}, {}, "persistence", "warning", "not known"),
        ({"redis_version": "6.0.9"}, {}, "version", "problem", "6.0.9"),
        ({"redis_version": "7.2.4", "valkey_version": "8.1.0"}, {}, "version", "ok", "Valkey 8.1.0"),
        ({"maxmemory": "9000000", "maxmemory_policy": "allkeys-lru"}, {}, "eviction", "problem", "throws jobs away"),
        ({"maxmemory_policy": "allkeys-lru"}, {}, "eviction", "warning", "no maxmemory yet"),
        ({"maxmemory_policy": "volatile-lru"}, {}, "eviction", "ok", "expiry"),
        ({"maxmemory": "9000000", "used_memory": "8900000"}, {}, "memory", "problem", "MiB used"),
        ({"maxmemory": "9000000", "used_memory": "7500000"}, {}, "memory", "warning", "MiB used"),
        ({"role": "slave"}, {}, "replication", "problem", "replica"),
        (
            {"connected_slaves": "1", "master_repl_offset": "99000000", "slave0": "ip=::1,port=1,offset=7"},
            {}, "replication", "warning", "1 replica(s)",
        ),
        ({"cluster_enabled": "1"}, {}, "mode", "problem", "cluster"),
        ({"connected_clients": "990", "maxclients": "1000"}, {}, "clients", "warning", "990 of 1000"),
    ],
)  # fmt: skip
def test_settings_are_judged(info: dict[str, str], config: dict[str, str], check: str, level: str, says: str) -> None:
    found = _settings(info, config)[check]
    assert (found.level.value, says in found.text) == (level, True)
    assert bool(found.advice) == (level != "ok")


# -- a real server ------------------------------------------------------------------------


@pytest.fixture
def server(redis_url: str) -> Iterator[Callable[..., Any]]:
    import redis

    client: Any = redis.Redis.from_url(redis_url)
    users: list[str] = []

    def make_user(*rules: str) -> str:
        name = f"u{secrets.token_hex(4)}"
        users.append(name)
        client.execute_command("ACL", "SETUSER", name, "on", ">pass", *rules)
        return redis_url.replace("redis://", f"redis://{name}:pass@")

    try:
        yield make_user
        for name in users:
            client.execute_command("ACL", "DELUSER", name)
    finally:
        client.close()


def _keys(redis_url: str) -> set[bytes]:
    import redis

    with redis.Redis.from_url(redis_url) as client:
        return set(client.scan_iter(count=1000))


def test_doctor_and_info_on_a_real_server(redis_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    name = f"doctor-{secrets.token_hex(4)}"
    with Queue(name, redis_url) as queue:
        try:
            queue.enqueue_many([(f"j{n}", n) for n in range(500)])
            queue.enqueue("later", delay=3600)
            before = _keys(redis_url)
            main(["doctor", name, "--url", redis_url, "--json"])  # the code depends on the server's persistence
            found = _findings(capsys)
            assert {"version", "eviction", "persistence", "replication"} <= set(found)
            for check in ("version", "rights", "clock", f"jobs of {name}"):
                assert found[check]["level"] == "ok", found[check]
            assert "501 job(s)" in found[f"jobs of {name}"]["text"]
            assert _keys(redis_url) == before
            assert main(["info", name, "--url", redis_url, "--json"]) == 0
            assert json.loads(capsys.readouterr().out)["counts"]["queued"] == 500
        finally:
            queue.delete()


@pytest.mark.parametrize(
    ("rules", "check", "level", "says"),
    [
        (["~*", "&*", "+@all"], "rights", "ok", "all that reliq needs"),
        (["~*", "&*", "+@all", "-zadd", "-blpop"], "rights", "problem", "BLPOP, ZADD"),
        (["~app:*", "&*", "+@all"], "rights", "problem", "may not"),
        (["~*", "resetchannels", "+@all"], "events", "warning", "may not publish"),
        (["~*", "&*", "+@all", "-multi"], "rights", "warning", "cannot be told"),
        (["~*", "&*", "+@all", "-info", "-config"], "server", "warning", "INFO is refused"),
    ],
)
def test_rights_are_told_without_using_them(
    server: Callable[..., str], redis_url: str, rules: Sequence[str], check: str, level: str, says: str
) -> None:
    before = _keys(redis_url)
    found = {finding.check: finding for finding in examine(server(*rules))}
    assert (found[check].level.value, says in found[check].text) == (level, True), found
    assert _keys(redis_url) == before


def test_a_server_that_went_away_meanwhile_is_a_storage_error() -> None:
    with pytest.raises(StorageUnavailableError, match="stopped answering"):
        list(examine("redis://127.0.0.1:1/0"))


# -- the audit ----------------------------------------------------------------------------


class _Crooked(MemoryStorage):
    """A storage that tells of its jobs what a test wants."""

    def __init__(self) -> None:
        super().__init__()
        self.twist: Callable[[Snapshot], Snapshot] = lambda snapshot: snapshot
        self.extra = 0

    def read(self, queue: str, ids: Sequence[str], *, payload: bool = True) -> list[Snapshot]:
        return [self.twist(snapshot) for snapshot in super().read(queue, ids, payload=payload)]

    def counts(self, queue: str) -> dict[State, int]:
        found = super().counts(queue)
        return {**found, State.QUEUED: found[State.QUEUED] + self.extra}


@pytest.fixture
def crooked() -> Iterator[_Crooked]:
    storage = _Crooked()
    queue = storage.queue("emails")
    queue.enqueue_many([(f"j{n}", n) for n in range(5)])
    storage.claim("emails", Worker("w", "1"), 1, serial=1, lease_ms=60_000)
    yield storage
    storage.close()


def _audit(storage: MemoryStorage) -> list[Finding]:
    return list(audit.audit(storage.queue("emails"), lambda _: None, 1000))


def test_a_sound_queue_passes_its_audit(crooked: _Crooked) -> None:
    [finding] = _audit(crooked)
    assert (finding.level, finding.text[:9]) == (Level.OK, "5 job(s) ")


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("message", b"?", "cannot be read"),
        ("attempts", 99, "more attempts"),
        ("worker", None, "without a worker"),
        ("expires_at_ms", 1, "unfinished, but it expires"),
        ("state", State.COMPLETED, "but completed"),
    ],
)
def test_what_breaks_a_promise_is_named(crooked: _Crooked, field: str, value: Any, says: str) -> None:
    [running], _ = crooked.list_ids("emails", State.PROCESSING, None, 10)
    crooked.twist = lambda found: found._replace(**{field: value}) if found.id == running else found
    findings = _audit(crooked)
    assert any(found.level is Level.PROBLEM and says in found.text and running in found.text for found in findings)


def test_counts_that_do_not_fit_are_a_problem(crooked: _Crooked) -> None:
    crooked.extra = 2
    [finding] = _audit(crooked)
    assert finding.text == "6 queued job(s) are counted and 4 listed"


def test_what_only_moved_is_no_problem(crooked: _Crooked) -> None:
    """A job that is claimed between the listing and the read of it is listed wrong once."""
    seen: set[str] = set()

    def twist(found: Snapshot) -> Snapshot:
        if found.id in seen:
            return found
        seen.add(found.id)
        return found._replace(state=State.PROCESSING)

    crooked.twist = twist
    [finding] = _audit(crooked)
    assert finding.level is Level.OK


def test_a_queue_larger_than_the_limit_is_read_in_part(crooked: _Crooked) -> None:
    [finding] = audit.audit(crooked.queue("emails"), lambda _: None, 1)
    assert finding.level is Level.OK
    assert "only the first were read" in finding.text


def test_a_dead_worker_is_a_warning(crooked: _Crooked) -> None:
    crooked.skew_ms = -60_000
    crooked.claim("emails", Worker("gone", "2", ttl_ms=1000), 1, serial=1, lease_ms=1000)
    crooked.skew_ms = 0
    finding = next(found for found in audit.look_after(crooked.queue("emails")) if found.check.startswith("workers"))
    assert finding.level is Level.WARNING
    assert "1 of 2 did not report" in finding.text


# -- reap ---------------------------------------------------------------------------------


def test_reap_goes_on_until_a_signal(url: str) -> None:
    with Queue("emails", url) as queue:
        queue.enqueue("due", delay=0.01)
        process = subprocess.Popen([sys.executable, "-m", "reliq", "reap", "--url", url], stdout=subprocess.PIPE)
        try:
            deadline = time.monotonic() + 30
            while queue.counts()["queued"] == 0:
                assert time.monotonic() < deadline
                time.sleep(0.01)
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=30)
    assert process.returncode == 0


def test_reap_once_promotes_and_a_dry_run_only_says_so(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    with Queue("emails", url) as queue:
        queue.storage.skew_ms = -60_000
        queue.enqueue("due", delay=30)
        queue.enqueue("a")
        queue.storage.claim("emails", Worker("gone", "2", ttl_ms=1000), 1, serial=1, lease_ms=1000)
        queue.storage.skew_ms = 0
        assert main(["reap", "--once", "--dry-run", "--url", url, "--json"]) == 0
        plans = {plan["what"]: plan for plan in map(json.loads, capsys.readouterr().out.splitlines())}
        assert plans["promote"]["id"] == "due"
        assert plans["recover"]["id"] == "gone"
        assert queue.counts()["scheduled"] == 1
        assert main(["reap", "--once", "--url", url]) == 0
        assert queue.counts()["scheduled"] == 0
    assert main(["reap", "--dry-run", "--url", url]) == 2
