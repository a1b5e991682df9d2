"""The parser of forms against any content, and against what others write and read."""

from __future__ import annotations

import email.policy
import re
from email.parser import BytesParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reliq.http.multipart import Field, parse_multipart
from reliq.http.response import Problem

from .support import multipart, part

#: Contents made of what could be taken for a boundary, and of anything else.
CONTENT = st.lists(
    st.one_of(st.sampled_from([b"\r\n", b"--", b"--b", b"\r", b"\n", b" ", b"\r\n--bc", b"b"]), st.binary())
)
NAME = st.text(st.characters(blacklist_categories=("Cs", "Cc", "Zl", "Zp"), blacklist_characters='"\\'), max_size=20)


def _holds_a_boundary(content: bytes) -> bool:
    """As RFC 2046 has it: a line that begins with the boundary and has nothing but blanks behind it, or ``--``."""
    return re.search(rb"(?:\A|\r\n)--b(?:--|[ \t]*\r\n)", content + b"\r\n") is not None


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(NAME, CONTENT.map(b"".join)), max_size=5))
def test_what_was_written_is_read(parts: list[tuple[str, bytes]]) -> None:
    parts = [(name, content) for name, content in parts if not _holds_a_boundary(content)]
    body, _ = multipart(*(part(name, content) for name, content in parts), boundary="b")
    assert parse_multipart(body, "b") == [Field(name, None, "text/plain", None, content) for name, content in parts]


@settings(max_examples=60, deadline=None)
@given(
    CONTENT.map(b"".join),
    st.sampled_from([b"", b"--b\r\n", b'--b\r\nContent-Disposition: form-data; name="a"\r\n\r\n']),
)
def test_nothing_but_a_problem_comes_of_nonsense(content: bytes, start: bytes) -> None:
    try:
        parse_multipart(start + content + b"\r\n--b--", "b")
    except Problem as problem:
        assert problem.status == 400


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(NAME.filter(str.strip), st.binary(max_size=50)), min_size=1, max_size=3))
def test_the_standard_librarys_parser_reads_the_same(parts: list[tuple[str, bytes]]) -> None:
    """It is lenient about line ends, so only on contents without any."""
    parts = [(name, content.translate(None, b"\r\n-")) for name, content in parts]
    body, headers = multipart(*(part(name, content) for name, content in parts), boundary="b")
    head = f"Content-Type: {headers['Content-Type']}\r\n\r\n".encode()
    message = BytesParser(policy=email.policy.compat32).parsebytes(head + body)
    theirs = [piece.get_payload(decode=True) for piece in message.get_payload()]  # type: ignore[union-attr]
    assert theirs == [field.content for field in parse_multipart(body, "b")]


@pytest.mark.parametrize(
    ("disposition", "name", "filename"),
    [
        ('form-data; name="a"; filename="b;c.txt"', "a", "b;c.txt"),
        ("form-data; filename*=UTF-8''%e2%82%ac.txt; name=a", "a", "€.txt"),
        ("form-data; name=a; filename*=iso-8859-1'en'%A3.txt", "a", "£.txt"),
        ('FORM-DATA; NAME="a"', "a", None),
        ('form-data; name=""', "", None),
        ('form-data; name="a"; name="b"', "a", None),
        ('form-data; name="a\\"b"', 'a"b', None),
        ('form-data;\r\n name="a"', "a", None),
        ('form-data; name="ä€"', "ä€", None),
    ],
)
def test_dispositions_as_clients_write_them(disposition: str, name: str, filename: str | None) -> None:
    body, _ = multipart(f"Content-Disposition: {disposition}\r\n\r\n1".encode())
    [field] = parse_multipart(body, "frontier")
    assert (field.name, field.filename) == (name, filename)
