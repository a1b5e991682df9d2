"""The README names everything that there is. Its examples run with those of the docs (tests/docs)."""

from __future__ import annotations

from pathlib import Path

import reliq

ROOT = Path(reliq.__file__).parent.parent
README = ROOT / "README.rst"


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

    reference = ROOT / "docs" / "reference"
    texts = README.read_text(), (reference / "configuration.rst").read_text() + (reference / "http.rst").read_text()
    for field in (*fields(QueueOptions), *fields(JobOptions), *fields(EndpointOptions)):
        assert all(f"``{field.name}``" in text for text in texts)
