"""The standard library's WSGI server, for what a command shows over HTTP."""

from __future__ import annotations

import contextlib
import logging
import socket
import socketserver
import threading
from collections.abc import Iterator
from typing import Any

from .common import CommandError

#: A client that says nothing for so long is cut off: it would hold a thread.
_SILENCE_SECONDS = 30.0


@contextlib.contextmanager
def serving(host: str, port: int, app: Any, name: str) -> Iterator[int]:
    """Serve a WSGI application in a thread ``reliq-{name}`` meanwhile; gives the port (0 takes one that is free).

    Raises CommandError when the address cannot be had. Requests are logged to ``reliq.{name}`` at DEBUG.
    """
    # Only whoever serves pays for these.
    from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

    log = logging.getLogger(f"reliq.{name}")

    class Server(socketserver.ThreadingMixIn, WSGIServer):
        daemon_threads = True
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

        def handle_error(self, *_: Any) -> None:
            log.debug("a client hung up")

    class Handler(WSGIRequestHandler):
        timeout = _SILENCE_SECONDS

        def log_message(self, format: str, *arguments: Any) -> None:
            log.debug(format, *arguments)

    try:
        server = make_server(host, port, app, Server, Handler)
    except OSError as error:
        raise CommandError(f"cannot listen on {in_url(host)}:{port}: {error.strerror or error}") from None
    thread = threading.Thread(target=server.serve_forever, args=(0.1,), name=f"reliq-{name}", daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def in_url(host: str) -> str:
    """The address as it stands in a URL."""
    return f"[{host}]" if ":" in host else host
