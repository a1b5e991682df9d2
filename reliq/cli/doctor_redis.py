"""What must hold of a Redis or Valkey server: version, memory, persistence, replication, rights, clock."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from typing import Any

from ..errors import StorageUnavailableError
from ..storage.redis.connection import Link, connect
from ..storage.redis.wire import UnreachableError
from .findings import Finding, ok, problem, warning

_OLDEST = (6, 2)
#: A clock that differs by more confuses `at=` and what listings show; nothing else rests on it.
_CLOCK_DOUBT_S = 1.0
_FULL, _NEARLY_FULL = 0.95, 0.8
_PROBE = "{reliq:doctor}"
#: What the scripts and the connections of reliq do, each in a form that the server takes without looking at keys.
_COMMANDS: tuple[tuple[str, ...], ...] = (
    ("EVAL", "return 1", "1", f"{_PROBE}:meta"),
    ("EVALSHA", "0" * 40, "1", f"{_PROBE}:meta"),
    ("TIME",),
    ("DEL", f"{_PROBE}:x"),
    ("UNLINK", f"{_PROBE}:x"),
    ("EXISTS", f"{_PROBE}:x"),
    ("PEXPIRE", f"{_PROBE}:x", "1000"),
    ("EXPIRE", f"{_PROBE}:x", "1"),
    ("PERSIST", f"{_PROBE}:x"),
    ("RENAME", f"{_PROBE}:x", f"{_PROBE}:y"),
    ("HGET", f"{_PROBE}:jobs", "x"),
    ("HMGET", f"{_PROBE}:jobs", "x"),
    ("HEXISTS", f"{_PROBE}:jobs", "x"),
    ("HSCAN", f"{_PROBE}:jobs", "0"),
    ("HSET", f"{_PROBE}:jobs", "x", "y"),
    ("HDEL", f"{_PROBE}:jobs", "x"),
    ("HINCRBY", f"{_PROBE}:meta", "x", "1"),
    ("LINDEX", f"{_PROBE}:pending", "0"),
    ("LLEN", f"{_PROBE}:pending"),
    ("LPOP", f"{_PROBE}:pending"),
    ("LPUSH", f"{_PROBE}:pending", "x"),
    ("LRANGE", f"{_PROBE}:pending", "0", "1"),
    ("LREM", f"{_PROBE}:pending", "0", "x"),
    ("LSET", f"{_PROBE}:pending", "0", "x"),
    ("RPUSH", f"{_PROBE}:pending", "x"),
    ("ZADD", f"{_PROBE}:workers", "1", "x"),
    ("ZCARD", f"{_PROBE}:workers"),
    ("ZMSCORE", f"{_PROBE}:workers", "x"),
    ("ZPOPMIN", f"{_PROBE}:workers"),
    ("ZRANGE", f"{_PROBE}:workers", "0", "1"),
    ("ZRANGEBYSCORE", f"{_PROBE}:workers", "0", "1"),
    ("ZRANK", f"{_PROBE}:workers", "x"),
    ("ZREM", f"{_PROBE}:workers", "x"),
    ("ZSCORE", f"{_PROBE}:workers", "x"),
    ("BLPOP", f"{_PROBE}:wake", "1"),
    ("SMEMBERS", "reliq:queues"),
    ("SADD", "reliq:queues", "x"),
    ("SREM", "reliq:queues", "x"),
)
_EVENTS = ("PUBLISH", f"{_PROBE}:events", "x")
_NO_CONFIG = "the server does not let this user read it (managed servers do so): see its console"


def examine(url: str) -> Iterator[Finding]:
    """Everything around the data on the server of ``url``; raises StorageUnavailableError when it stops answering."""
    link = connect(url)
    try:
        try:
            server = _Server(link)
        except _RefusedError as error:
            yield warning("server", f"INFO is refused: {error}", "allow this user +info, to see more than its rights")
            server = _Server(link, {})
        else:
            yield from server.settings()
        yield from server.rights()
        yield server.clock()
    finally:
        link.close()


class _Server:
    def __init__(self, link: Link, info: dict[str, str] | None = None) -> None:
        self._link = link
        self._info = _info(self._ask("INFO")) if info is None else info

    def settings(self) -> Iterator[Finding]:
        yield self.version()
        yield from self.mode()
        yield from self.memory()
        yield from self.persistence()
        yield from self.replication()

    def version(self) -> Finding:
        info = self._info
        name = "Valkey" if info.get("server_name") == "valkey" or "valkey_version" in info else "Redis"
        text = info.get("valkey_version") or info.get("redis_version", "")
        parts = tuple(int(part) for part in text.split(".")[:2] if part.isdecimal())
        if parts < _OLDEST and name == "Redis":
            return problem("version", f"{name} {text}", "reliq needs Redis 6.2 or newer, or Valkey: upgrade the server")
        return ok("version", f"{name} {text}")

    def mode(self) -> Iterator[Finding]:
        if self._info.get("cluster_enabled") == "1" and not self._link.is_cluster:
            yield problem("mode", "a cluster, spoken to as one server", "use a redis+cluster:// URL")
        if self._info.get("loading") == "1":
            yield problem("mode", "the server is loading its data", "wait until it has")
        clients, most = self._number("connected_clients"), self._number("maxclients")
        if most and clients >= most * _NEARLY_FULL:
            yield warning("clients", f"{clients} of {most} connections", "raise maxclients: each worker takes several")

    def memory(self) -> Iterator[Finding]:
        used, most = self._number("used_memory"), self._number("maxmemory")
        policy = self._info.get("maxmemory_policy") or self._config("maxmemory-policy")
        if policy is None:
            yield warning("eviction", "maxmemory-policy is not known", _NO_CONFIG)
        elif policy == "noeviction":
            yield ok("eviction", "noeviction")
        elif policy.startswith("allkeys"):
            text = f"maxmemory-policy is {policy}: a full server throws jobs away"
            advice = "CONFIG SET maxmemory-policy noeviction (a server of its own, where others need a cache)"
            yield (
                problem("eviction", text, advice) if most else warning("eviction", f"{text}; no maxmemory yet", advice)
            )
        else:
            # What live jobs need carries no expiry; what does are replies, which callers look up again.
            yield ok("eviction", f"{policy}: only keys with an expiry, which no job needs")
        if not most:
            yield ok("memory", f"{used >> 20} MiB used, no maxmemory: the machine's memory is the limit")
            return
        text = f"{used >> 20} of {most >> 20} MiB used"
        advice = "a full server refuses writes: raise maxmemory, or keep less (max_length, result_ttl, dead_ttl)"
        if used >= most * _FULL:
            yield problem("memory", text, advice)
        elif used >= most * _NEARLY_FULL:
            yield warning("memory", text, advice)
        else:
            yield ok("memory", text)

    def persistence(self) -> Iterator[Finding]:
        check = "persistence"
        writes = ("aof_last_write_status", "the last write of the log"), ("rdb_last_bgsave_status", "the last snapshot")
        for name, text in writes:
            if self._info.get(name, "ok") != "ok":
                yield problem(check, f"{text} failed", "see the server's log, and whether its disk is full")
        if self._info.get("aof_enabled") == "1":
            fsync = self._config("appendfsync")
            if fsync == "always":
                yield ok(check, "appendonly yes, appendfsync always: every acknowledged job survives a loss of power")
            elif fsync == "no":
                yield warning(
                    check, "appendonly yes, appendfsync no: a loss of power may lose half a minute",
                    "CONFIG SET appendfsync everysec, or always",
                )  # fmt: skip
            else:
                yield ok(
                    check,
                    f"appendonly yes, appendfsync {fsync or 'unknown'}: a loss of power may lose the last second"
                    " (`always` keeps it)",
                )
            return
        save = self._config("save")
        if save is None:
            yield warning(check, "appendonly no; whether snapshots are taken is not known", _NO_CONFIG)
        elif save:
            yield warning(
                check, f"snapshots only (save {save}): a crash loses what came after the last one",
                "CONFIG SET appendonly yes, and the same in its configuration file",
            )  # fmt: skip
        else:
            text, advice = "none: a restart loses every job", "appendonly yes and appendfsync everysec or always"
            replicas = self._number("connected_slaves")
            yield warning(check, f"{text}; {replicas} replica(s)", advice) if replicas else problem(check, text, advice)

    def replication(self) -> Iterator[Finding]:
        check = "replication"
        if self._info.get("role") in ("slave", "replica"):
            yield problem(check, "this server is a replica", "use the primary's address, or a redis+sentinel:// URL")
            return
        count = self._number("connected_slaves")
        if not count:
            yield ok(check, "no replicas: nothing is lost by a failover, and none comes to the rescue")
            return
        offset = self._number("master_repl_offset")
        behind = max(
            (
                offset - int(_fields(text).get("offset", offset))
                for name, text in self._info.items()
                if _is_replica(name)
            ),
            default=0,
        )
        text = f"{count} replica(s), at most {behind} bytes behind"
        if behind > 10 << 20:
            yield warning(check, text, "a failover loses what is not there yet: see the link and the replica's load")
        else:
            yield ok(check, f"{text}; a failover may lose those (confirm_replicas= waits for them)")

    def rights(self) -> Iterator[Finding]:
        if self._link.is_cluster:
            yield ok("rights", "not tried on a cluster")
            return
        user = "default"
        with contextlib.suppress(Exception):
            user = _text(self._ask("ACL", "WHOAMI"))
        try:
            refused = self._refused()
        except _CannotTellError as error:
            yield warning("rights", f"cannot be told for user {user!r}: {error}", f"look at ACL GETUSER {user}")
            return
        publishes = _EVENTS[0] not in refused
        refused.pop(_EVENTS[0], None)
        if refused:
            names = ", ".join(sorted(refused))
            yield problem(
                "rights", f"user {user!r} may not {names}: {next(iter(refused.values()))}",
                f"ACL SETUSER {user} ~{{reliq:* ~reliq:* &{{reliq:* +@all -@dangerous",
            )  # fmt: skip
        else:
            yield ok("rights", f"user {user!r} may do all that reliq needs")
        if not publishes:
            yield warning(
                "events", f"user {user!r} may not publish: subscribers hear nothing, a cancel takes a heartbeat",
                f"ACL SETUSER {user} &{{reliq:* +publish +subscribe",
            )  # fmt: skip

    def _refused(self) -> dict[str, str]:
        """The commands that this user may not give, with what the server says.

        They are queued in a transaction that is then discarded: rights are looked at when a command is queued, and
        nothing is carried out. Every answer is looked at before the next command goes out, so that none is sent outside
        of the transaction.
        """
        refused: dict[str, str] = {}
        try:
            if _text(self._ask("MULTI")) != "OK":
                raise _CannotTellError("no transaction could be begun")
        except _RefusedError as error:
            raise _CannotTellError(str(error)) from error
        try:
            for command in (*_COMMANDS, _EVENTS):
                try:
                    answer = _text(self._ask(*command))
                except _RefusedError as error:
                    if "permission" not in str(error).lower() and "noperm" not in str(error).lower():
                        raise _CannotTellError(f"{command[0]}: {error}") from error
                    refused[command[0]] = str(error)
                    continue
                if answer != "QUEUED":
                    raise _CannotTellError(f"{command[0]} was answered with {answer!r:.40}")
        finally:
            with contextlib.suppress(Exception):
                self._ask("DISCARD")
        return refused

    def clock(self) -> Finding:
        before = time.time()
        answer = self._ask("TIME")
        after = time.time()
        seconds, micros = answer if isinstance(answer, list | tuple) else (before, 0)
        # Somewhere on the way there and back the server looked at its clock.
        difference = int(seconds) + int(micros) / 1e6 - (before + after) / 2
        doubt = (after - before) / 2
        trip_ms = (after - before) * 1000
        text = f"the server's differs by {difference:+.3f} s (within {doubt:.3f} s), round trip {trip_ms:.1f} ms"
        if abs(difference) - doubt > _CLOCK_DOUBT_S:
            return warning("clock", text, "the server's clock decides what is due: let both machines follow NTP")
        return ok("clock", text)

    def _ask(self, *command: str) -> Any:
        # The client library is the storage's: here it is named only where its errors have to be.
        from redis.exceptions import RedisError, ResponseError

        try:
            return self._link.execute(*command)[0]
        except ResponseError as error:
            raise _RefusedError(str(error)) from error
        except (RedisError, UnreachableError, OSError) as error:
            raise StorageUnavailableError(f"the server stopped answering: {error}") from error

    def _number(self, name: str) -> int:
        text = self._info.get(name, "")
        return int(text) if text.isdecimal() else 0

    def _config(self, name: str) -> str | None:
        """A setting, or None where this user may not read it."""
        try:
            answer = self._ask("CONFIG", "GET", name)
        except _RefusedError:
            return None
        if isinstance(answer, Mapping):
            found = {_text(key): _text(value) for key, value in answer.items()}
        else:
            texts = [_text(part) for part in answer]
            found = dict(zip(texts[::2], texts[1::2], strict=False))
        return found.get(name)


class _RefusedError(Exception):
    """The server answered a command with an error."""


class _CannotTellError(Exception):
    """The rights cannot be told, for this reason."""


def _info(answer: Any) -> dict[str, str]:
    if isinstance(answer, Mapping):  # a cluster's client has taken it apart already
        return {str(name): _text(value) for name, value in answer.items()}
    pairs = (line.partition(":") for line in _text(answer).splitlines() if line and not line.startswith("#"))
    return {name: value for name, _, value in pairs}


def _is_replica(name: str) -> bool:
    return name.removeprefix("slave").isdecimal()


def _fields(text: str) -> dict[str, str]:
    return dict(part.split("=", 1) for part in text.split(",") if "=" in part)


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
