"""The package as it is installed: public names, imports, metadata."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

import reliq

ROOT = Path(reliq.__file__).parent.parent
#: Names that applications may rely on.
FIXED = {
    "Queue", "WorkerPool", "Reaper", "RedisStorage", "MemoryStorage", "FileStorage", "Storage", "NewJob", "Job",
    "Backoff", "JsonSerde", "RawSerde", "Serde", "Retry", "Reject", "content_id", "EnqueueResult", "CancelResult",
    "JobStatus", "Event", "ReliqError", "JobError", "JobFailedError", "MaxRetriesError", "JobCancelledError",
    "JobNotFoundError", "ResultExpiredError", "CallTimeoutError", "LeaseLostError", "InvalidJobError",
    "QueueFullError", "SerdeError", "StorageError", "StorageUnavailableError", "StorageCorruptError",
    "OutcomeUnknownError", "NotConfirmedError", "ScheduleInfo",
}  # fmt: skip


def _python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_fixed_names_are_exported() -> None:
    assert set(reliq.__all__) >= FIXED


@pytest.mark.parametrize("name", reliq.__all__)
def test_each_exported_name_is_there_and_shown(name: str) -> None:
    assert getattr(reliq, name) is not None
    assert name in dir(reliq)


def test_all_is_sorted_and_names_nothing_twice() -> None:
    assert sorted(reliq.__all__) == sorted(set(reliq.__all__))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = reliq.nonsense


def test_import_loads_no_client_library() -> None:
    heavy = "redis", "hiredis", "watchdog", "filelock", "sqlite3", "cronsim", "asyncio"
    assert _python(f"import sys, reliq; print([name for name in {heavy} if name in sys.modules])") == "[]"


def test_the_command_line_loads_what_a_command_uses() -> None:
    heavy = (
        "redis",
        "hiredis",
        "watchdog",
        "filelock",
        "sqlite3",
        "rich",
        "wsgiref",
        "prometheus_client",
        "opentelemetry",
    )
    assert _python(f"import sys, reliq.cli.main; print([name for name in {heavy} if name in sys.modules])") == "[]"


def test_import_loads_no_door() -> None:
    doors = "reliq.http", "reliq.contrib", "reliq.dashboard", "wsgiref", "flask", "django"
    assert _python(f"import sys, reliq; print([name for name in {doors} if name in sys.modules])") == "[]"


def test_the_http_door_loads_no_framework_and_no_client_library() -> None:
    heavy = "flask", "werkzeug", "django", "redis", "watchdog", "sqlite3", "asyncio"
    assert _python(f"import sys, reliq.http; print([name for name in {heavy} if name in sys.modules])") == "[]"


def test_import_starts_nothing() -> None:
    assert (
        _python("import threading, reliq; reliq.Queue('q', 'redis://nowhere'); print(threading.active_count())") == "1"
    )


def test_star_import_works() -> None:
    assert _python("from reliq import *; print(RedisStorage.__name__, Queue.__name__)") == "RedisStorage Queue"


def test_the_version_is_that_of_the_metadata() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    try:
        installed = metadata.version("reliq")
    except metadata.PackageNotFoundError:
        assert reliq.__version__ == "unknown"
    else:
        assert reliq.__version__ == installed == project["version"]


def test_the_docstring_is_a_tour_that_compiles() -> None:
    assert reliq.__doc__ is not None
    tour = reliq.__doc__.partition("::\n")[2].rpartition("\n\nNothing connects")[0]
    names = {node.id for node in ast.walk(ast.parse("if 1:\n" + tour)) if isinstance(node, ast.Name)}
    assert {"Queue", "WorkerPool", "q"} <= names


def test_what_is_not_python_is_packaged() -> None:
    data = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["reliq"]
    packaged = {path for pattern in data for path in (ROOT / "reliq").glob(pattern)}
    there = {
        path
        for path in (ROOT / "reliq").rglob("*")
        if path.is_file() and path.suffix not in {".py", ".pyc", ".so"} and "__pycache__" not in path.parts
    }
    assert there == packaged


def test_settings_stand_in_one_place() -> None:
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    assert {"pytest", "ruff", "mypy", "setuptools"} <= set(tools)
    text = (ROOT / "setup.cfg").read_text()
    for section in ("metadata", "options", "tool:pytest", "mypy", "flake8"):
        assert f"[{section}" not in text
