"""``reliq dashboard``: a process of its own, from its address to its end."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from reliq import Queue
from reliq.cli.main import main

from ..http.support import Address, ask


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = f"file://{tmp_path / 'queue'}"
    with Queue("emails", url) as queue:
        queue.enqueue("a", {"password": "hunter2"})
    return url


@contextmanager
def running(*arguments: str, end: int) -> Iterator[Address]:
    """The command, told to end by a signal, which it does without a word of trouble."""
    process = subprocess.Popen(
        [sys.executable, "-m", "reliq", "dashboard", "--port", "0", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        said = process.stdout.readline()
        assert said.startswith("http://127.0.0.1:"), said + process.communicate(timeout=20)[1]
        yield "127.0.0.1", int(said.rstrip("/\n").rpartition(":")[2])
        process.send_signal(end)
        _, trouble = process.communicate(timeout=20)
        assert process.returncode == 0, trouble
        assert "Traceback" not in trouble
    finally:
        process.kill()
        process.communicate()


def test_it_looks_and_ends_with_sigterm(url: str) -> None:
    with running("--url", url, end=signal.SIGTERM) as address:
        answer = ask(address, "GET", "/job?queue=emails&id=a")
        assert answer.status == 200
        assert b"hunter2" not in answer.body
        assert b"<form" not in ask(address, "GET", "/dead").body
        assert ask(address, "GET", "/", headers={"Host": "evil.example"}).status == 421
        assert json.loads(ask(address, "GET", "/api/queues").body)["queues"][0]["queue"] == "emails"


def test_it_acts_and_shows_when_it_may_and_ends_with_sigint(url: str) -> None:
    arguments = ("--allow-actions", "--show-payloads", "--allow-host", "jobs.example.org")
    with running("--url", url, *arguments, end=signal.SIGINT) as address:
        answer = ask(address, "GET", "/job?queue=emails&id=a", headers={"Host": "jobs.example.org"})
        assert b"hunter2" in answer.body
        assert b"Cancel job" in answer.body


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["--host", "0.0.0.0"], 2, "0.0.0.0 is every address of this machine: say --allow-host NAME"),
        (["--host", "::"], 2, ":: is every address of this machine"),
        (["--allow-host", "a:80"], 2, "without a port, got 'a:80'"),
        (["--port", "70000"], 2, "must be from 0 to 65535, got 70000"),
        (["--url", "memory://"], 2, "a memory:// storage lives inside its own process"),
        (["--url", "file:///nowhere/at/all"], 1, "there is no queue in /nowhere/at/all"),
    ],
)
def test_what_it_cannot_do_is_said(
    url: str, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, text: str
) -> None:
    try:
        found: Any = main(["dashboard", "--url", url, *arguments])
    except SystemExit as end:
        found = end.code
    assert found == code
    assert text in capsys.readouterr().err


def test_a_port_that_is_taken_is_said(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert main(["dashboard", "--url", url, "--port", str(port)]) == 1
        assert f"cannot listen on 127.0.0.1:{port}" in capsys.readouterr().err
