"""A PostgreSQL of the tests' own, in a temporary directory, reached by a Unix socket only."""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path


class NoPostgres(Exception):
    """Why there is none."""


def _program(name: str) -> str:
    found = shutil.which(name) or next(iter(sorted(glob.glob(f"/usr/lib/postgresql/*/bin/{name}"), reverse=True)), None)
    if found is None:
        raise NoPostgres(f"no {name} here (apt-get install postgresql)")
    return os.path.realpath(found)


@contextlib.contextmanager
def postgres() -> Iterator[str]:
    """Start one; yields the directory of its socket, which is its HOST for Django. The user is ``postgres``."""
    if find_spec("psycopg") is None:
        raise NoPostgres("psycopg is not installed (pip install psycopg[binary])")
    initdb, server = _program("initdb"), _program("postgres")
    home = Path(tempfile.mkdtemp(prefix="reliq-pg-"))
    # PostgreSQL refuses to run as root.
    user = "nobody" if os.geteuid() == 0 else None
    try:
        if user is not None:
            shutil.chown(home, user)
        data = home / "data"
        made = subprocess.run(
            [initdb, "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync"],
            user=user, cwd=home, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        if made.returncode != 0:
            raise NoPostgres(f"initdb failed: {made.stderr[-500:]}")
        with _serve(server, data, home, user):
            yield str(home)
    finally:
        shutil.rmtree(home, ignore_errors=True)


@contextlib.contextmanager
def _serve(server: str, data: Path, home: Path, user: str | None) -> Iterator[None]:
    import psycopg

    process = subprocess.Popen(
        [server, "-D", data, "-k", home, "-c", "listen_addresses=", "-c", "fsync=off"],
        user=user, cwd=home, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    try:
        for line in process.stderr:  # it says when it is ready, or ends
            if "ready to accept connections" in line:
                break
        else:
            raise NoPostgres("postgres did not start")
        with psycopg.connect(host=str(home), user="postgres", dbname="postgres", autocommit=True) as connection:
            connection.execute("CREATE DATABASE logs")
        yield
    finally:
        process.send_signal(signal.SIGINT)  # ends the sessions that are left
        process.communicate(timeout=60)
