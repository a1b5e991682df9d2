"""The command line without processes: usage, errors, exit codes, `info`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import reliq
from reliq import InvalidJobError, Queue, WorkerPool
from reliq.cli.apps import load_target
from reliq.cli.main import main
from reliq.storage.base import Worker


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RELIQ_URL", "RELIQ_APP"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An application in the current directory: write jobs.py and name it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path / "cli_jobs.py"
    sys.modules.pop("cli_jobs", None)


def _exit_code(*arguments: str) -> int:
    try:
        return main(arguments)
    except SystemExit as end:
        assert isinstance(end.code, int)
        return end.code


@pytest.mark.parametrize("arguments", [["--help"], ["demo", "--help"], ["worker", "--help"], ["info", "--help"]])
def test_help_teaches_with_examples(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert _exit_code(*arguments) == 0
    out = capsys.readouterr().out
    assert "examples:" in out
    assert "exit codes:" in out or "info" in arguments
    assert "parent-fd" not in out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert _exit_code("--version") == 0
    assert capsys.readouterr().out == f"reliq {reliq.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "COMMAND"),
        (["dance"], "invalid choice"),
        (["info"], "RELIQ_URL"),
        (["info", "--url", "ftp://x"], "redis://"),
        (["info", "--url", "memory://x"], "memory://"),
        (["demo", "--url", "memory://"], "memory://"),
        (["demo", "--url", "ftp://x"], "redis://"),
        (["worker"], "TARGET"),
        (["worker", "nocolon"], "module:attribute"),
        (["worker", "no_such_module_here:q"], "no module 'no_such_module_here'"),
        (["worker", "os.nothing:q"], "no module 'os.nothing'"),
        (["worker", "os:nothing"], "no 'nothing'"),
        (["worker", "os:sep"], "must be a Queue"),
        (["worker", "os:getenv"], "takes arguments"),
        (["worker", "os:getcwd"], "must be a Queue"),
        (["worker", "a:b", "-t", "0"], "1 or more"),
        (["worker", "a:b", "-t", "many"], "invalid number value"),
        (["worker", "a:b", "--worker-ttl", "0"], "above 0"),
        (["worker", "a:b", "--worker-id", "x" * 200], "--worker-id"),
    ],
)
def test_wrong_usage_exits_with_2_and_says_why(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str], module: Path
) -> None:
    assert _exit_code(*arguments) == 2
    captured = capsys.readouterr()
    assert says in captured.err
    assert "Traceback" not in captured.err
    assert not captured.out


# -- info ---------------------------------------------------------------------------------


def _fill(url: str) -> None:
    with Queue("emails", url) as emails, Queue("reports", url) as reports:
        emails.enqueue_many([(f"e{number}", number) for number in range(3)])
        emails.storage.claim("emails", Worker("someone", "1234", 4), 1, serial=1, lease_ms=60_000)
        emails.cancel("e2")
        reports.enqueue("r", delay=60)
        reports.pause()


def test_info_shows_counts_pause_and_workers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"file://{tmp_path / 'queue'}"
    _fill(url)
    assert main(["info", "--url", url]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"storage {url}"
    heads = next(line.split() for line in lines if line.startswith("queue"))
    cells = next(line.split() for line in lines if line.startswith("emails"))
    emails = dict(zip(heads, cells, strict=True))
    assert emails.pop("waits")
    assert {head: count for head, count in emails.items() if count != "0"} == {
        "queue": "emails", "queued": "1", "processing": "1",
    }  # fmt: skip
    assert next(line for line in lines if line.startswith("reports")).endswith("paused")
    assert next(line.split() for line in lines if line.startswith("someone")) == ["someone", "emails", "4", "1"]


def test_info_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"file://{tmp_path / 'queue'}"
    _fill(url)
    monkeypatch.setenv("RELIQ_URL", url)
    assert main(["info", "--json", "emails"]) == 0
    emails = json.loads(capsys.readouterr().out)
    assert emails["storage"] == url
    assert emails["queue"] == "emails"
    assert not emails["is_paused"]
    assert (emails["counts"]["queued"], emails["counts"]["processing"]) == (1, 1)
    assert emails["workers"] == [{"worker_id": "someone", "threads": 4, "processing": 1}]


def test_info_of_an_unknown_queue(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"file://{tmp_path / 'queue'}"
    _fill(url)
    assert main(["info", "--url", url, "nobody"]) == 1
    assert "emails, reports" in capsys.readouterr().err


def test_info_makes_no_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "--url", f"file://{tmp_path / 'nothing'}"]) == 1
    assert "there is no queue" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_info_of_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"file://{tmp_path / 'queue'}"
    with Queue("emails", url) as emails:
        emails.enqueue("e")
        emails.delete()
    assert main(["info", "--url", url]) == 0
    assert "no queues yet" in capsys.readouterr().out


def test_info_on_a_dead_server_exits_with_1_and_shows_no_password(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "--url", "redis://user:s3cret@127.0.0.1:1/0"]) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith("reliq: ")
    assert "s3cret" not in captured.err + captured.out
    assert "Traceback" not in captured.err


# -- what a worker is told to run ---------------------------------------------------------

JOBS = """
from reliq import Queue, WorkerPool
q = Queue("a", "memory://cli-jobs")
bare = Queue("b", "memory://cli-jobs")
@q.handler
def run(job): return job.payload
class inner: q = q
def make(): return [q]
def make_pool(): return WorkerPool(q, threads=3)
"""


@pytest.mark.parametrize("attribute", ["q", "inner.q", "make"])
def test_target_may_be_a_queue_a_path_or_a_factory(module: Path, attribute: str) -> None:
    module.write_text(JOBS)
    found = load_target(f"cli_jobs:{attribute}")
    assert isinstance(found, list)
    assert [queue.name for queue in found] == ["a"]


def test_target_may_be_a_pool(module: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module.write_text(JOBS)
    found = load_target("cli_jobs:make_pool")
    assert isinstance(found, WorkerPool)
    assert found.threads == 3
    assert main(["worker", "cli_jobs:make_pool", "-t", "4"]) == 2
    assert "--threads cannot change it" in capsys.readouterr().err


def test_target_without_a_handler_and_handlers_are_refused(module: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module.write_text(JOBS)
    assert main(["worker", "cli_jobs:bare"]) == 2
    assert "no handler" in capsys.readouterr().err
    assert main(["worker", "cli_jobs:run"]) == 2
    assert "takes arguments" in capsys.readouterr().err


def test_target_whose_own_import_fails_shows_where(module: Path) -> None:
    module.write_text("import no_such_dependency\n")
    with pytest.raises(ModuleNotFoundError, match="no_such_dependency"):
        load_target("cli_jobs:q")


def test_memory_cannot_be_shared_by_processes(module: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module.write_text(JOBS)
    assert main(["worker", "cli_jobs:q", "--processes", "2"]) == 2
    assert "in memory" in capsys.readouterr().err
    sys.modules["cli_jobs"].q.close()


def test_a_worker_until_empty_runs_everything(module: Path) -> None:
    module.write_text(JOBS)
    found = load_target("cli_jobs:q")
    assert isinstance(found, list)
    [queue] = found
    queue.enqueue_many([(f"j{number}", number) for number in range(50)])
    assert main(["worker", "cli_jobs:q", "-t", "2", "--until-empty"]) == 0
    assert queue.counts()["completed"] == 50
    queue.close()


def test_library_errors_become_texts(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(*_: object) -> None:
        raise InvalidJobError("refused for a reason")

    monkeypatch.setattr("reliq.cli.info.open_place", refuse)
    assert main(["info"]) == 2
    assert capsys.readouterr().err == "reliq: refused for a reason\n"
