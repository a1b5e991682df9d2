"""The stored envelope of a job: what goes in comes out, and nothing else is taken for one."""

from __future__ import annotations

import subprocess
import sys

import pytest

from reliq.errors import InvalidJobError, StorageCorruptError
from reliq.message import MAX_HEADER_BYTES, Message, decode, encode
from reliq.retry import Backoff
from reliq.serde import JsonSerde, content_id

WHOLE = Message(b"\0payload", {"trace": "ü \U0001f600"}, 2.5, Backoff(0.5, 3.0, 60.0, 0.0), ("a", "b"))


def test_what_goes_in_comes_out() -> None:
    for message in (Message(b""), Message(b"{}"), WHOLE, WHOLE._replace(headers={}), WHOLE._replace(after=())):
        assert decode(encode(message.payload, dict(message.headers), *message[2:])) == message


def test_defaults_take_three_bytes() -> None:
    assert encode(b"payload") == b"\x01\0\0payload"


def test_headers_belong_to_their_message_alone() -> None:
    data = encode(b"", {"a": "b"})
    first = decode(data)
    first.headers["c"] = "d"  # type: ignore[index]
    assert decode(data).headers == {"a": "b"}


def test_the_head_has_a_bound() -> None:
    with pytest.raises(InvalidJobError, match=f"at most {MAX_HEADER_BYTES} bytes"):
        encode(b"", {"a": "x" * MAX_HEADER_BYTES})


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x01",
        b"\x02\0\0",
        b"\x01\x02\0[]",
        b"\x01\x02\0{",
        b'\x01\x10\0{"headers":[""]}',
        b'\x01\x11\0{"headers":{"":1}}',
        b'\x01\x13\0{"time_limit":true}',
        b'\x01\x10\0{"time_limit":0}',
        b'\x01\x0b\0{"after":1}',
        b'\x01\x0e\0{"backoff":1.}',
    ],
)
def test_nothing_else_is_taken_for_one(data: bytes) -> None:
    with pytest.raises(StorageCorruptError):
        decode(data)


def test_without_orjson_the_same_bytes_are_made_and_read() -> None:
    code = (
        "import sys; sys.modules['orjson'] = None\n"
        "from reliq.message import decode, encode\n"
        "from reliq.retry import Backoff\n"
        f"data = encode(b'', {dict(WHOLE.headers)!r}, *{WHOLE[2:]!r})\n"
        "decode(data)\n"
        "sys.stdout.buffer.write(data)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=True)
    assert done.stdout == encode(b"", dict(WHOLE.headers), *WHOLE[2:])


def test_without_orjson_values_have_the_same_bytes_and_ids_and_the_same_are_refused() -> None:
    code = """
import sys
sys.modules["orjson"] = None
from reliq.errors import SerdeError
from reliq.serde import JsonSerde, content_id
refused = 0
for value in (float("nan"), [float("inf")], {"a": 2**64}, {"a": [-(2**63) - 1]}):
    try:
        JsonSerde().dumps(value)
    except SerdeError:
        refused += 1
print(refused, content_id(VALUE), JsonSerde().dumps(VALUE).hex())
"""
    value = {"b": [1, 2.5, None, "\u00e9"], "a": 2**64 - 1}
    done = subprocess.run(
        [sys.executable, "-c", code.replace("VALUE", repr(value))],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.split() == ["4", content_id(value), JsonSerde().dumps(value).hex()]
