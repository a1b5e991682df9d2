"""The commands that look at jobs, make them and take them back, on a store of files."""

from __future__ import annotations

import argparse
import io
import json
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from reliq import Queue, Reject, WorkerPool, shown
from reliq.cli import output, times
from reliq.cli.main import main

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RELIQ_URL", "RELIQ_APP"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Queue]:
    url = f"file://{tmp_path / 'queue'}"
    monkeypatch.setenv("RELIQ_URL", url)
    with Queue("emails", url) as queue:
        yield queue


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str) -> tuple[int, str, str]:
        try:
            code = main(arguments)
        except SystemExit as end:
            assert isinstance(end.code, int)
            code = end.code
        captured = capsys.readouterr()
        assert "Traceback (most recent call last):\n  File" not in captured.err or code == 1
        return code, captured.out, captured.err

    return run


def _lines(out: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines()]


def _work(queue: Queue, handler: Callable[[Any], Any]) -> None:
    """Run what is queued, by a handler of the test's own."""
    with Queue(queue.name, queue.storage) as worker:
        worker.handler(handler)
        assert WorkerPool(worker, threads=1).run_until_empty(timeout=20)


def _bury(queue: Queue, *ids: str, error: str = "no such street") -> None:
    queue.enqueue_many([(id, {"to": id}) for id in ids])

    def refuse(job: Any) -> None:
        raise Reject(error)

    _work(queue, refuse)


# -- ls, show -----------------------------------------------------------------------------


def test_ls_shows_jobs_of_one_state_or_all(queue: Queue, run: Run) -> None:
    queue.enqueue("now", {"secret": 1}, priority=3)
    queue.enqueue("later", delay=3600, group="ada")
    code, out, _ = run("ls", "emails")
    assert code == 0
    assert "secret" not in out
    heads, *rows = (line.split() for line in out.splitlines())
    assert heads[:3] == ["id", "state", "attempts"]
    assert {row[0]: row[1] for row in rows} == {"now": "queued", "later": "scheduled"}
    assert {"prio", "group", "due"} <= set(heads)
    code, out, _ = run("ls", "--state", "queued", "--json")
    [job] = _lines(out)
    assert (code, job["id"], job["state"], job["attempts"], job["priority"]) == (0, "now", "queued", 0, 3)
    assert "payload" not in job


def test_ls_goes_on_where_a_page_ended(queue: Queue, run: Run) -> None:
    queue.enqueue_many([(f"j{n}", None) for n in range(5)])
    seen: list[str] = []
    arguments: list[str] = []
    for _ in range(3):
        code, out, err = run("ls", "emails", "--state", "queued", "--limit", "2", "--json", *arguments)
        assert code == 0
        seen += [job["id"] for job in _lines(out)]
        arguments = ["--cursor", err.rpartition("--cursor ")[2].strip().strip("'")]
    assert seen == [f"j{n}" for n in range(5)]
    assert not err


def test_show_tells_errors_with_tracebacks_and_payloads_only_when_asked(queue: Queue, run: Run) -> None:
    queue.enqueue("a", {"to": "ada"}, headers={"trace": "4711"}, max_attempts=1, group="ada")

    def fail(job: Any) -> None:
        job.progress({"done": 1})
        raise ValueError("no\x1b[31m street")

    _work(queue, fail)
    code, out, _ = run("show", "a")
    assert code == 0
    assert "state     failed" in out
    assert "attempts  1 of 1" in out
    assert "trace=4711" in out
    assert 'progress  {"done": 1}' in out
    assert "group     ada, sequence" in out
    assert "ValueError: no\\x1b[31m street" in out
    assert 'raise ValueError("no' in out
    assert "\x1b" not in out
    assert '"to"' not in out
    assert 'payload   {"to": "ada"}' in run("show", "a", "--payload")[1]
    _, out, _ = run("show", "a", "--payload", "--json")
    [job] = _lines(out)
    assert job["payload"] == {"to": "ada"}
    assert job["errors"][0]["error_type"] == "ValueError"
    assert "raise ValueError" in job["errors"][0]["traceback"]


def test_show_looks_through_all_queues(queue: Queue, run: Run) -> None:
    queue.enqueue("a")
    Queue("reports", queue.storage).enqueue("a")
    assert [job["queue"] for job in _lines(run("show", "a", "--json")[1])] == ["emails", "reports"]
    assert [job["queue"] for job in _lines(run("show", "a", "-q", "reports", "--json")[1])] == ["reports"]
    code, out, err = run("show", "nobody")
    assert (code, out) == (1, "")
    assert "no job 'nobody'" in err


# -- which queue --------------------------------------------------------------------------


def test_the_queue_must_be_clear(queue: Queue, run: Run) -> None:
    assert run("ls")[0] == 1  # nothing there yet
    queue.enqueue("a")
    assert run("ls")[0] == 0  # the only one
    Queue("reports", queue.storage).enqueue("b")
    code, _, err = run("ls")
    assert code == 2
    assert "emails, reports" in err
    assert run("ls", "emails", "-q", "reports")[0] == 2
    assert run("ls", "nobody")[0] == 1
    assert run("ls", "no spaces")[0] == 2
    assert run("ls", "--state", "lost", "emails")[0] == 2


APP = """
from reliq import Queue, RawSerde
emails = Queue("emails", max_attempts=7, payload_serde=RawSerde())
other = Queue("other")
queues = [emails, other]
"""


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "cli_app.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield "cli_app"
    sys.modules.pop("cli_app", None)


def test_an_application_brings_its_queues_with_their_options(
    app: str, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"file://{tmp_path / 'elsewhere'}"
    assert run("enqueue", "a", "<raw>", "--app", f"{app}:emails", "--url", url)[:2] == (0, "queued a\n")
    monkeypatch.setenv("RELIQ_URL", url)
    monkeypatch.setenv("RELIQ_APP", f"{app}:emails")
    [job] = _lines(run("show", "a", "--payload", "--json")[1])
    assert (job["max_attempts"], job["payload"]) == (7, "<raw>")
    monkeypatch.setenv("RELIQ_APP", f"{app}:queues")
    assert run("ls")[0] == 2
    assert run("ls", "other") == (0, "no jobs\n", "")
    assert [fact["queue"] for fact in _lines(run("info", "--json")[1])] == ["emails", "other"]
    code, _, err = run("ls", "--app", f"{app}:nothing")
    assert code == 2
    assert "no 'nothing'" in err
    # A URL on the command line comes before an application of the environment.
    assert run("ls", "other", "--url", url)[0] == 1


# -- enqueue, call ------------------------------------------------------------------------


def test_enqueue_takes_payloads_and_options(
    queue: Queue, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mail.json"
    path.write_text('{"to": "ada"}')
    assert run("enqueue", "-q", "emails", "a", f"@{path}", "--header", "trace=4=7", "--priority", "5")[0] == 0
    monkeypatch.setattr(sys, "stdin", io.StringIO("[1, 2]"))
    assert run("enqueue", "b", "-", "--delay", "1h30m", "--max-attempts", "9")[1] == "queued b (scheduled)\n"
    assert run("enqueue", "c", "--after", "a", "--after", "b", "--time-limit", "5m")[1] == "queued c (waiting)\n"
    assert run("enqueue", "a")[1] == "duplicate a (queued)\n"
    [answer] = _lines(run("enqueue", "", '"x"', "--json")[1])
    assert len(answer["id"]) == 32
    found = queue.get_statuses(["a", "b", "c", answer["id"]])
    a, b, c, d = (found[id] for id in ("a", "b", "c", answer["id"]))
    assert a and b and c and d
    assert (a.payload, dict(a.headers), a.priority) == ({"to": "ada"}, {"trace": "4=7"}, 5)
    assert (b.payload, b.max_attempts) == ([1, 2], 9)
    assert b.due_at is not None
    assert 5300 < b.due_at - b.created_at < 5500
    assert c.after == ("a", "b")
    assert d.payload == "x"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["a", "hello"], """a text needs quotes: '"hello"'"""),
        (["a", "@/no/such/file"], "cannot be read"),
        (["a", "--header", "x"], "NAME=VALUE"),
        (["a", "--delay", "soon"], "30s, 5m"),
        (["a", "--at", "2027-01-01T00:00:00"], "zone"),
        (["a", "--delay", "1", "--at", "1"], "not allowed with"),
        (["a", "--priority", "10"], "priority"),
        (["a\nb"], "control characters"),
    ],
)
def test_enqueue_refuses_with_2_and_writes_nothing(queue: Queue, run: Run, arguments: list[str], says: str) -> None:
    code, out, err = run("enqueue", "-q", "emails", *arguments)
    assert (code, out) == (2, "")
    assert says in err
    assert not any(queue.counts().values())


def test_enqueue_names_a_new_queue(queue: Queue, run: Run) -> None:
    code, _, err = run("enqueue", "a")
    assert code == 2
    assert "name the new one with -q" in err
    assert run("enqueue", "-q", "fresh", "a")[0] == 0
    assert run("enqueue", "b")[0] == 0  # the only one by now


def test_call_prints_the_result_as_json(queue: Queue, run: Run) -> None:
    with Queue("emails", queue.storage) as worker:
        worker.handler(lambda job: {"sum": sum(job.payload)})
        with WorkerPool(worker, threads=1):
            code, out, err = run("call", "-q", "emails", "s", "[1, 2, 3]", "--timeout", "20s")
    assert (code, json.loads(out), err) == (0, {"sum": 6}, "")


def test_call_of_a_failing_job_exits_with_1_and_its_error(queue: Queue, run: Run) -> None:
    def fail(job: Any) -> None:
        raise Reject("negative amount")

    with Queue("emails", queue.storage) as worker:
        worker.handler(fail)
        with WorkerPool(worker, threads=1):
            code, out, err = run("call", "-q", "emails", "s")
    assert (code, out) == (1, "")
    assert "Reject: negative amount" in err


def test_call_that_nobody_answers_exits_with_1_and_says_how_to_go_on(queue: Queue, run: Run) -> None:
    code, out, err = run("call", "-q", "emails", "s", "--timeout", "10ms")
    assert (code, out) == (1, "")
    assert "did not end within 0.01 s; it goes on" in err
    assert "reliq show" in err


# -- cancel -------------------------------------------------------------------------------


def test_cancel_says_what_became_of_each(queue: Queue, run: Run) -> None:
    queue.enqueue_many([("a", None), ("b", None), ("c", 1), ("d", 1), ("e", 2)])
    code, out, _ = run("cancel", "a", "b", "--json")
    assert code == 0
    assert _lines(out) == [{"id": "a", "status": "cancelled"}, {"id": "b", "status": "cancelled"}]
    code, out, _ = run("cancel", "a", "e")
    assert code == 1
    assert out.split() == ["id", "status", "a", "not_found", "e", "cancelled"]
    assert run("cancel")[0] == 2
    assert run("cancel", "a", "--matching", "1")[0] == 2
    code, _, err = run("cancel", "--matching", "1")
    assert code == 2
    assert "--yes" in err
    assert queue.counts()["queued"] == 2
    assert run("cancel", "--matching", "1", "--yes")[0] == 0
    assert not any(queue.counts().values())


def test_cancel_running_asks_the_handler(queue: Queue, run: Run) -> None:
    started = threading.Event()

    def listen(job: Any) -> None:
        started.set()
        job.signal.wait(20)
        job.check()

    with Queue("emails", queue.storage) as worker:
        worker.handler(listen)
        with WorkerPool(worker, threads=1):
            queue.enqueue("a")
            assert started.wait(20)
            assert run("cancel", "a")[0] == 1
            code, out, _ = run("cancel", "a", "--running")
    assert (code, out.split()[-1]) == (0, "cancelling")
    assert queue.get_status("a") is None


# -- dead letters -------------------------------------------------------------------------


def test_dead_letters_are_listed_shown_retried_and_discarded(queue: Queue, run: Run) -> None:
    _bury(queue, "a", "b")
    _bury(queue, "c", error="the bank is busy")
    queue.enqueue("alive")
    code, out, _ = run("dead", "ls", "emails")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()[1:]] == ["a", "b", "c"]
    assert [job["id"] for job in _lines(run("dead", "ls", "--error", "bank", "--json")[1])] == ["c"]
    assert run("dead", "ls", "--older", "1h")[1] == "no dead letters\n"
    assert "Reject: no such street" in run("dead", "show", "a")[1]
    assert run("dead", "show", "alive")[0] == 1

    assert run("dead", "retry")[0] == 2
    assert run("dead", "retry", "a", "--all")[0] == 2
    code, out, err = run("dead", "retry", "a", "alive")
    assert (code, out) == (1, "1 retried\n")
    assert "'alive' is no dead letter" in err
    assert run("dead", "retry", "--error", "bank", "--json")[1] == '{"count": 1, "status": "retried", "ids": ["c"]}\n'
    assert (queue.counts()["queued"], queue.counts()["failed"]) == (3, 1)

    code, _, err = run("dead", "discard", "b")
    assert code == 2
    assert "Discard 1 dead letter(s)" in err
    assert run("dead", "discard", "--older", "1h", "--yes")[1] == "0 discarded\n"
    assert run("dead", "discard", "--all", "--yes")[1] == "1 discarded\n"
    assert queue.counts()["failed"] == 0


def test_all_dead_letters_are_retried(queue: Queue, run: Run) -> None:
    _bury(queue, "a", "b")
    assert run("dead", "retry", "--all")[1] == "2 retried\n"
    assert queue.counts()["queued"] == 2


# -- whole queues -------------------------------------------------------------------------


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_pause_and_resume(queue: Queue, run: Run) -> None:
    queue.enqueue("a")
    assert run("pause", "emails")[1] == "emails: paused\n"
    assert queue.is_paused
    assert run("resume", "--json")[1] == '{"queue": "emails", "status": "resumed"}\n'
    assert not queue.is_paused
    assert run("pause", "nobody")[0] == 1


@pytest.mark.parametrize("command", ["purge", "delete"])
def test_what_destroys_asks(queue: Queue, run: Run, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    queue.enqueue("a")
    code, _, err = run(command, "emails")
    assert code == 2
    assert "--yes" in err
    for answer, expected in (("\n", 1), ("no\n", 1), ("y\n", 0)):
        assert queue.counts()["queued"] == 1
        monkeypatch.setattr(sys, "stdin", _Terminal(answer))
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
        code, out, err = run(command, "emails")
        assert code == expected
        assert "[y/N]" in err
    assert "1 job(s)" in out
    assert not any(queue.counts().values())


def test_limits_are_shown_set_and_lifted(queue: Queue, run: Run) -> None:
    queue.enqueue("a")
    assert "rate_limit         none" in run("limits", "emails")[1]
    assert run("limits", "--rate", "100/s", "--max-concurrency", "8")[0] == 0
    assert queue.limits["rate_limit"] == "100/s"
    [limits] = _lines(run("limits", "--rate", "none", "--json")[1])
    assert (limits["rate_limit"], limits["max_concurrency"]) == (None, 8)
    assert run("limits", "--rate", "100")[0] == 2
    assert run("limits", "--max-length", "0")[0] == 2
    assert "max concurrency 8" in run("info")[1]


def test_schedules_are_listed_and_removed(queue: Queue, run: Run) -> None:
    queue.schedule("often", every=90, payload="secret")
    code, out, _ = run("schedules", "ls")
    assert code == 0
    assert "every 1m 30s" in out
    [info] = _lines(run("schedules", "ls", "--json")[1])
    assert (info["name"], info["every"]) == ("often", 90.0)
    assert "payload" not in info
    assert run("schedules", "rm", "often")[0] == 2
    assert run("schedules", "rm", "often", "--yes")[1] == "removed often\n"
    assert run("schedules", "rm", "often", "--yes")[0] == 1
    assert run("schedules", "ls")[1] == "no schedules\n"


# -- what they share ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [("30", 30), ("0", 0), ("1.5", 1.5), ("250ms", 0.25), ("30s", 30), ("5m", 300), ("1h30m", 5400), ("2d", 172_800)],
)
def test_times_are_parsed(text: str, expected: float) -> None:
    assert times.seconds(text) == pytest.approx(expected)


@pytest.mark.parametrize("text", ["", "s", "5 m", "-5", "1x", "m5", "1h 5", "inf", "nan", "1e3"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        times.seconds(text)


def test_moments_are_parsed() -> None:
    assert times.moment("1800000000") == 1_800_000_000
    assert times.moment("2027-01-15T08:00:00Z") == times.moment("2027-01-15T09:00:00+01:00") == 1_800_000_000


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, "0s"),
        (0.44, "0.4s"),
        (59, "59s"),
        (60, "1m"),
        (5400, "1h 30m"),
        (90_061, "1d 1h"),
        (-5, "-5s"),
        (3601, "1h"),
    ],
)
def test_spans_are_short(value: float, expected: str) -> None:
    assert shown.span(value) == expected


def test_hostile_ids_do_not_reach_the_terminal(queue: Queue, run: Run) -> None:
    hostile = "evil\u202etxt.[bold]x[/bold]"
    queue.enqueue(hostile)
    _, out, _ = run("ls")
    assert "evil\\u202etxt.[bold]x[/bold]" in out
    assert _lines(run("ls", "--json")[1])[0]["id"] == hostile


def _tables(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, arguments: Sequence[str]) -> str:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert main(arguments) == 0
    return capsys.readouterr().out


def test_a_terminal_gets_rich_tables_when_rich_is_there(
    queue: Queue, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("rich")
    queue.enqueue("a[bold]b[/bold]")
    out = _tables(capsys, monkeypatch, ["ls"])
    assert "a[bold]b[/bold]" in out
    assert "queued" in out


def test_a_terminal_gets_plain_tables_without_rich(
    queue: Queue, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("rich.table", "rich.text", "rich.console"):
        monkeypatch.setitem(sys.modules, name, None)
    queue.enqueue("a")
    out = _tables(capsys, monkeypatch, ["ls"])
    assert out.splitlines()[1].split()[:3] == ["a", "queued", "0/3"]


@pytest.mark.parametrize("has_rich", [True, False])
def test_progress_goes_to_a_terminal_only(
    has_rich: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if has_rich:
        pytest.importorskip("rich")
    else:
        for name in ("rich.table", "rich.text", "rich.console"):
            monkeypatch.setitem(sys.modules, name, None)
    with output.progress("looking") as tell:
        tell("1 of 2")
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with output.progress("looking") as tell:
        tell("1 of 2")
    captured = capsys.readouterr()
    assert not captured.out
    assert has_rich or "looking: 1 of 2" in captured.err


def test_info_refreshes_until_it_is_interrupted(queue: Queue, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    queue.enqueue("a")
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr("reliq.cli.info.time.sleep", pause)
    code, out, _ = run("info", "-i", "2s", "--json")
    assert (code, pauses) == (0, [2, 2])
    assert [fact["counts"]["queued"] for fact in _lines(out)] == [1, 1]
