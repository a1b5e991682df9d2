"""Connections to the server: one pool for each storage, with every default of the client set explicitly.

redis-py's defaults repeat a command up to ten times when its answer is late; reliq repeats only
what is safe to repeat, and does so itself. This module and :mod:`.wire` are the places that know
the client library's classes; its loose types end here.
"""

from __future__ import annotations

import inspect
import os
import threading
from collections.abc import Callable
from typing import Any, Protocol, cast
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

import redis
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.connection import ConnectionPool, UnixDomainSocketConnection
from redis.exceptions import RedisClusterException
from redis.retry import Retry
from redis.sentinel import Sentinel, SentinelConnectionPool

from ...errors import InvalidJobError
from .wire import CONNECT_TIMEOUT, Overdue, Reply, Stack, UnreachableError

#: Seconds a command may take.
COMMAND_TIMEOUT = 5.0
#: The longest one blocking read lasts, and how much later than that the server may answer.
BLOCK_SECONDS = 10.0
BLOCK_MARGIN = 5.0
#: Callers that may block at once; more wait for a place, so that they cannot starve the workers.
MAX_WAITS = 256

#: redis-py types its methods loosely and differently between versions: here they count as Any.
_node: Any = ClusterNode
_sentinel: Any = Sentinel
_sentinel_pool: Any = SentinelConnectionPool
_cluster: Any = RedisCluster


class Link(Protocol):
    """What the storage needs of a server, whatever its topology."""

    is_cluster: bool

    def execute(
        self, *command: Any, replicas: int = 0, replica_ms: int = 0, timeout: float = COMMAND_TIMEOUT
    ) -> tuple[Reply, int]:
        """Run a short command; its reply, and how many replicas confirmed it (when asked).

        ``timeout`` shortens the wait for the answer, for callers with a deadline.
        """

    def block(
        self, *command: Any, timeout: float = BLOCK_SECONDS + BLOCK_MARGIN, overdue: Overdue | None = None
    ) -> Reply:
        """Run a command that blocks for at most BLOCK_SECONDS; ``timeout`` as in :meth:`execute`.

        ``overdue``: after so many seconds without an answer that function is called, which is to bring it about. A
        cluster's client cannot do that.
        """

    def pubsub(self) -> Any:
        """A redis-py PubSub on a connection of its own."""

    def close(self) -> None:
        """Disconnect everything."""


def connect(url: str, **options: Any) -> Link:
    """A link for ``url``. Nothing connects yet, except for a cluster at its first command."""
    check_url(url)
    scheme, _, rest = url.partition("://")
    scheme = {"valkey": "redis", "valkeys": "rediss"}.get(scheme, scheme)
    if scheme == "redis+cluster":
        hosts, kwargs = _hosts(url, 6379)
        nodes = [_node(host, port) for host, port in hosts]
        return ClusterLink(
            lambda timeout: _cluster(startup_nodes=nodes, **kwargs, **_cluster_defaults(timeout), **options)
        )
    if scheme == "redis+sentinel":
        hosts, kwargs = _hosts(url, 26379)
        service = kwargs.pop("service", None)
        if not service:
            raise InvalidJobError(
                "a Sentinel URL names its service: redis+sentinel://host:26379,host2:26379/service[/db]"
            )

        manager = _sentinel(hosts, sentinel_kwargs=_defaults(CONNECT_TIMEOUT))

        def sentinel_pool(timeout: float) -> ConnectionPool:
            kw = {**kwargs, **options, **_defaults(timeout)}
            pool: ConnectionPool = _sentinel_pool(service, manager, **kw)
            return pool

        return DirectLink(sentinel_pool, manager)
    plain = f"{scheme}://{rest}"
    defaults = _unix_defaults if scheme == "unix" else _defaults
    return DirectLink(lambda timeout: ConnectionPool.from_url(plain, **{**defaults(timeout), **options}))


def check_url(url: str) -> SplitResult:
    """The parts of ``url``; raises InvalidJobError, without any text of it that may be a password."""
    try:
        parts = urlsplit(url)
        if "," not in parts.netloc:
            parts.port  # noqa: B018 (raises for what is none)
    except ValueError:
        parts = None
    if parts is None or "@" in parts.path + parts.query or parts.fragment:
        raise InvalidJobError(
            "storage URL cannot be read: in scheme://user:password@host:port/db every / ? # @ : of user and password"
            " must be percent-encoded, and port be a number up to 65535"
        )
    unknown = [name for name in parse_qs(parts.query) if name not in _QUERY and not name.startswith("ssl_")]
    if unknown:
        raise InvalidJobError(f"storage URL has no option {unknown[0]!r:.40}; there are: {', '.join(_QUERY)}, ssl_*")
    return parts


def from_client(client: Any) -> Link:
    """A link with connections of its own to where ``client`` points. The client itself is left alone."""
    if isinstance(client, RedisCluster):
        nodes = [_node(node.host, node.port) for node in cast(Any, client).get_nodes()]
        manager = client.nodes_manager
        kept = {name: manager.connection_kwargs[name] for name in _KEPT if name in manager.connection_kwargs}
        return ClusterLink(lambda timeout: _cluster(startup_nodes=nodes, **{**kept, **_cluster_defaults(timeout)}))
    if not isinstance(client, redis.Redis):
        raise InvalidJobError(f"client must be a redis.Redis or RedisCluster, got {type(client).__name__}")
    pool = client.connection_pool
    kept = {name: value for name, value in pool.connection_kwargs.items() if not name.startswith(_DROPPED)}

    def make(timeout: float) -> ConnectionPool:
        is_unix = issubclass(pool.connection_class, UnixDomainSocketConnection)
        kwargs = {**kept, **(_unix_defaults if is_unix else _defaults)(timeout)}
        if isinstance(pool, SentinelConnectionPool):
            kwargs.pop("connection_pool", None)
            made: ConnectionPool = _sentinel_pool(pool.service_name, pool.sentinel_manager, **kwargs)
            return made
        return ConnectionPool(connection_class=pool.connection_class, **kwargs)

    return DirectLink(make)


class DirectLink:
    """One server (or the master that Sentinel names)."""

    is_cluster = False

    def __init__(self, make_pool: Callable[[float], ConnectionPool], sentinel: Any = None) -> None:
        self._make_pool = make_pool
        self._sentinel = sentinel
        self._short = Stack(make_pool(COMMAND_TIMEOUT), COMMAND_TIMEOUT)
        self._long = Stack(make_pool(BLOCK_SECONDS + BLOCK_MARGIN), BLOCK_SECONDS + BLOCK_MARGIN)

    def execute(
        self, *command: Any, replicas: int = 0, replica_ms: int = 0, timeout: float = COMMAND_TIMEOUT
    ) -> tuple[Reply, int]:
        if not replicas:
            return self._short.execute(command, timeout), 0
        # WAIT counts for the connection that wrote.
        reply, confirmed = self._short.execute_both(command, ("WAIT", replicas, replica_ms))
        return reply, int(confirmed)

    def block(
        self, *command: Any, timeout: float = BLOCK_SECONDS + BLOCK_MARGIN, overdue: Overdue | None = None
    ) -> Reply:
        if overdue is not None:
            return self._long.execute_until(command, overdue)
        return self._long.execute(command, timeout)

    def pubsub(self) -> Any:
        pool = self._make_pool(BLOCK_SECONDS + BLOCK_MARGIN)
        client: Any = redis.Redis(connection_pool=pool)
        return client.pubsub()

    def close(self) -> None:
        self._short.close()
        self._long.close()
        if self._sentinel is not None:
            for client in self._sentinel.sentinels:
                client.close()


class ClusterLink:
    """A cluster: the client's own class finds nodes and follows redirections."""

    is_cluster = True

    def __init__(self, make: Callable[[float], Any]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._clients: dict[float, Any] = {}
        self._pid = os.getpid()

    # The client's own class has one timeout for all commands, so `timeout` cannot shorten it here.

    def execute(
        self, *command: Any, replicas: int = 0, replica_ms: int = 0, timeout: float = COMMAND_TIMEOUT
    ) -> tuple[Reply, int]:
        if replicas:
            raise InvalidJobError("confirm_replicas is not supported on a cluster")
        return self._client(COMMAND_TIMEOUT).execute_command(*command), 0

    def block(
        self, *command: Any, timeout: float = BLOCK_SECONDS + BLOCK_MARGIN, overdue: Overdue | None = None
    ) -> Reply:
        return self._client(BLOCK_SECONDS + BLOCK_MARGIN).execute_command(*command)

    def pubsub(self) -> Any:
        return self._client(BLOCK_SECONDS + BLOCK_MARGIN).pubsub()

    def close(self) -> None:
        with self._lock:
            clients, self._clients = self._clients, {}
        for client in clients.values():
            client.close()

    def _client(self, timeout: float) -> Any:
        with self._lock:
            if self._pid != os.getpid():
                self._pid, self._clients = os.getpid(), {}
            client = self._clients.get(timeout)
            if client is None:
                try:
                    client = self._clients[timeout] = self._make(timeout)
                except redis.AuthenticationError:
                    raise
                except (redis.RedisError, RedisClusterException, OSError) as error:
                    raise UnreachableError(str(error)) from error
            return client


#: What a URL's query may say; how often and how long things are sent is decided here.
_QUERY = ("db", "username", "password", "client_name")
_KEPT = (
    "username", "password", "credential_provider", "ssl", "ssl_ca_certs", "ssl_certfile", "ssl_keyfile",
    "ssl_cert_reqs", "ssl_check_hostname",
)  # fmt: skip
_DROPPED = ("maint_", "event_", "orig_", "oss_", "maintenance_", "driver_info", "lib_", "himport", "legacy_")
_ACCEPTED = frozenset(inspect.signature(redis.connection.AbstractConnection.__init__).parameters)


def _defaults(timeout: float) -> dict[str, Any]:
    """Every default that decides how often and how long something is sent."""
    options: dict[str, Any] = {
        "socket_timeout": timeout,
        "socket_connect_timeout": CONNECT_TIMEOUT,
        "socket_keepalive": True,
        "retry": Retry(NoBackoff(), 0),
        "retry_on_error": [],
        "health_check_interval": 0,
        "protocol": 2,
        "decode_responses": False,
    }
    if "driver_info" in _ACCEPTED:
        options["driver_info"] = None
    else:
        options["lib_name"] = options["lib_version"] = None
    if "maint_notifications_config" in _ACCEPTED:
        from redis.maint_notifications import MaintNotificationsConfig

        options["maint_notifications_config"] = MaintNotificationsConfig(enabled=False)
    options["max_connections"] = 1 << 31  # the number of threads is the bound
    return options


def _unix_defaults(timeout: float) -> dict[str, Any]:
    options = _defaults(timeout)
    del options["socket_keepalive"]
    return options


def _cluster_defaults(timeout: float) -> dict[str, Any]:
    options = _defaults(timeout)
    del options["retry_on_error"]
    return options


def _hosts(url: str, default_port: int) -> tuple[list[tuple[str, int]], dict[str, Any]]:
    """``user:password@host:port,host:port/service/db?option=value`` in its parts."""
    parts = urlsplit(url)
    credentials, _, hosts = parts.netloc.rpartition("@")
    kwargs: dict[str, Any] = {}
    if credentials:
        username, _, password = credentials.partition(":")
        if username:
            kwargs["username"] = unquote(username)
        kwargs["password"] = unquote(password)
    path = [unquote(part) for part in parts.path.split("/") if part]
    if parts.scheme == "redis+sentinel" and path:
        kwargs["service"] = path[0]
        if len(path) > 1:
            if not path[1].isdigit():
                raise InvalidJobError(f"storage URL: db must be a number, got {path[1]!r:.40}")
            kwargs["db"] = int(path[1])
    for name, values in parse_qs(parts.query).items():
        kwargs[name] = {"true": True, "false": False}.get(values[0].lower(), values[0])
    found = []
    for host in hosts.split(","):
        name, _, port = host.rpartition(":") if not host.endswith("]") and ":" in host else (host, "", "")
        try:
            found.append((name.strip("[]") or "localhost", int(port or default_port)))
        except ValueError:
            raise InvalidJobError(f"storage URL: port must be a number, got {port!r}") from None
    return found, kwargs
