"""``reliq worker --http``: ``/healthz`` and ``/metrics`` of one worker process."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import logging
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

from ..errors import InvalidJobError
from ..worker.pool import WorkerPool
from .serving import in_url, serving

log = logging.getLogger("reliq.cli")

_NO_METRICS = b'no metrics: pip install "reliq[prometheus]"\n'


class Address(str):
    """``HOST:PORT`` of ``--http``, an argparse type; ``host`` and ``port`` apart. ``:PORT`` is the loopback."""

    host: str
    port: int

    def __new__(cls, text: str) -> Address:
        """Read it; raises ArgumentTypeError."""
        host, colon, number = text.rpartition(":")
        host = host.removeprefix("[").removesuffix("]") or "127.0.0.1"
        if not (number.isascii() and number.isdigit() and int(number) <= 65_535 and (colon or text == number)):
            raise argparse.ArgumentTypeError(f"must be HOST:PORT, :PORT or PORT, got {text!r}")
        self = super().__new__(cls, f"{in_url(host)}:{int(number)}")
        self.host, self.port = host, int(number)
        return self

    def of(self, number: int) -> Address:
        """The address of the process ``number`` of several, the first one's being this; 0 stays 0, any free port."""
        return self if self.port == 0 else Address(f"{in_url(self.host)}:{self.port + number - 1}")


@contextlib.contextmanager
def probes(address: Address | None, pool: WorkerPool) -> Iterator[None]:
    """Answer at ``address`` meanwhile, from before the pool starts until after it has stopped."""
    if address is None:
        yield
        return
    with serving(address.host, address.port, make_app(pool), "probes") as port:
        log.info("http://%s:%d/healthz and /metrics", in_url(address.host), port)
        yield


def make_app(pool: WorkerPool, registry: Any = None) -> Callable[..., list[bytes]]:
    """The WSGI application. Metrics are there when the extra ``prometheus`` is; health needs nothing.

    ``registry``: of prometheus_client; None is that of the process, so that what an application counts by itself is
    there, too.
    """
    scrape = _scraper(pool, registry)

    def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        path = environ.get("PATH_INFO", "")
        if path not in ("/healthz", "/metrics"):
            status, kind, body = "404 Not Found", "text/plain", b"there are: /healthz /metrics\n"
        elif environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            status, kind, body = "405 Method Not Allowed", "text/plain", b"only GET\n"
        elif path == "/healthz":
            status, kind, body = _health(pool)
        elif scrape is None:
            status, kind, body = "404 Not Found", "text/plain", _NO_METRICS
        else:
            return list(scrape(environ, start_response))
        headers = [("Content-Type", kind), ("Content-Length", str(len(body))), ("Cache-Control", "no-store")]
        start_response(status, headers)
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [body]

    return app


def _health(pool: WorkerPool) -> tuple[str, str, bytes]:
    health = pool.health()
    loops = [{**dataclasses.asdict(loop), "lags": loop.lags} for loop in health.loops]
    body = json.dumps({**dataclasses.asdict(health), "worker_id": pool.worker_id, "loops": loops}) + "\n"
    status = "200 OK" if health.is_alive else "503 Service Unavailable"
    return status, "application/json", body.encode()


def _scraper(pool: WorkerPool, registry: Any) -> Any:
    try:
        client = import_module("prometheus_client")
    except ImportError:
        return None
    from ..contrib.prometheus import metrics

    registry = client.REGISTRY if registry is None else registry
    found = metrics(registry)
    found.watch(pool)
    for queue in pool.queues:
        found.watch(queue)
        try:
            found.show(queue)
        except InvalidJobError as error:  # two of one name: no reason not to work
            log.warning("metrics: %s", error)
    return client.make_wsgi_app(registry)
