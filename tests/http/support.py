"""Real servers on real sockets, and clients that can say anything."""

from __future__ import annotations

import http.client
import json
import os
import socket
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 20.0
Address = tuple[str, int]


class Answer(NamedTuple):
    """What came back. ``json`` is None for an empty body."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body) if self.body else None

    @property
    def code(self) -> str | None:
        """The code of a problem, None for another answer."""
        if self.headers["Content-Type"] != "application/problem+json":
            return None
        found = self.json
        assert found["status"] == self.status
        assert {"type", "title", "detail", "code"} <= found.keys()
        return str(found["code"])


def ask(
    address: Address, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None, **json_body: Any
) -> Answer:
    """One request. Keyword arguments are the fields of a JSON body."""
    headers = dict(headers or {})
    if json_body:
        body = json_body
    if body is not None and not isinstance(body, bytes):
        body = json.dumps(body).encode()
        headers.setdefault("Content-Type", "application/json")
    connection = http.client.HTTPConnection(*address, timeout=PATIENCE)
    try:
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        return Answer(response.status, response.headers, response.read())
    finally:
        connection.close()


def say(address: Address, *data: bytes) -> Answer:
    """A request byte by byte as it is given, and no more; the answer to it."""
    with socket.create_connection(address, timeout=PATIENCE) as client:
        for piece in data:
            client.sendall(piece)
        client.shutdown(socket.SHUT_WR)
        response = http.client.HTTPResponse(client)
        response.begin()
        try:
            return Answer(response.status, response.headers, response.read())
        finally:
            response.close()


def until(condition: Callable[[], Any], what: str) -> None:
    """Look until ``condition`` holds."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, what
        threading.Event().wait(0.002)


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = False
    block_on_close = True


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


class _Impatient(_Quiet):
    timeout = 0.5


@contextmanager
def serving(app: Any, *, is_for_browsers: bool = False) -> Iterator[Address]:
    """``app`` behind the standard library's WSGI server, one thread a request.

    Browsers also open connections on which they say nothing: those must not hold a thread.
    """
    handler = _Impatient if is_for_browsers else _Quiet
    server = make_server("127.0.0.1", 0, app, _Server, handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), name="wsgiref")
    thread.start()
    try:
        yield "127.0.0.1", server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def gunicorn(app: str, cwd: Path = ROOT, **environment: str) -> Iterator[Address]:
    """``app`` (module:callable) behind gunicorn in a process of its own."""
    listener = socket.create_server(("127.0.0.1", 0))
    os.set_inheritable(listener.fileno(), True)
    # A disk that is busy must not look like a worker that hangs.
    heartbeats = ["--worker-tmp-dir=/dev/shm"] if Path("/dev/shm").is_dir() else []
    process = subprocess.Popen(
        [sys.executable, "-m", "gunicorn", "--worker-class=gthread", "--threads=4", "--log-level=warning",
         f"--bind=fd://{listener.fileno()}", "--no-control-socket", *heartbeats, app],
        cwd=cwd, env={**os.environ, **environment}, pass_fds=[listener.fileno()], stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        yield "127.0.0.1", listener.getsockname()[1]
    finally:
        listener.close()
        process.terminate()
        try:
            said = process.communicate(timeout=PATIENCE)[1]
        except subprocess.TimeoutExpired:
            process.kill()
            said = process.communicate()[1]
        print(said, file=sys.stderr)  # shown when a test failed


def multipart(*parts: bytes, boundary: str = "frontier") -> tuple[bytes, dict[str, str]]:
    """A form's body and its header."""
    line = b"--" + boundary.encode()
    body = b"".join(line + b"\r\n" + part + b"\r\n" for part in parts) + line + b"--\r\n"
    return body, {"Content-Type": f"multipart/form-data; boundary={boundary}"}


def part(name: str, value: bytes, more: str = "", lines: str = "") -> bytes:
    """One part of a form."""
    return f'Content-Disposition: form-data; name="{name}"{more}\r\n{lines}\r\n'.encode() + value
