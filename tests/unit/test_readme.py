"""The README's examples run as they stand."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

import reliq

README = Path(reliq.__file__).parent.parent / "README.rst"
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def test_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RELIQ_URL", raising=False)
    failed, attempted = doctest.testfile(str(README), module_relative=False, optionflags=OPTIONS)
    assert attempted > 20
    assert failed == 0


def test_it_names_every_command() -> None:
    from reliq.cli.completion import describe
    from reliq.cli.main import make_parser

    text = README.read_text()
    for command in describe(make_parser()):
        if len(command.words) == 1:
            assert f"``reliq {command.words[0]}" in text


def test_every_option_of_a_queue_a_job_and_an_endpoint_is_explained() -> None:
    from dataclasses import fields

    from reliq.http import EndpointOptions
    from reliq.options import JobOptions, QueueOptions

    text = README.read_text()
    for field in (*fields(QueueOptions), *fields(JobOptions), *fields(EndpointOptions)):
        assert f"``{field.name}``" in text
