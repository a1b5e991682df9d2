"""What jobs carry comes from anybody: it is shown, and it is nothing but text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit

import pytest

from reliq import Queue
from reliq.dashboard import Dashboard

from .conftest import run_all
from .hostile import HOSTILE, UNSAFE
from .support import Answer, Browser, Page

#: The only scripts, styles and images there are.
OWN = re.compile(r"/static/(dashboard\.js|dashboard\.css|icon\.svg)\?v=[0-9a-f]{16}")


@pytest.fixture
def hostile() -> Iterator[Browser]:
    """Jobs whose ids, groups, headers, payloads and errors are all hostile."""
    with Queue("evil", "memory://", max_attempts=1) as queue:
        for number, text in enumerate(HOSTILE):
            queue.enqueue(text, {"fail": text, text: [text]}, headers={"note": text, text[:80]: "x"})
            if number % 5 == 0:
                queue.enqueue(f"in-a-group-{number}", {"fail": text}, group=text)
        run_all(queue)
        app = Dashboard(queue, allow_actions=True, show_payloads=True, authenticate=lambda _: "<b>\u202emallory</b>")
        yield Browser(app)
        app.close()


def test_there_are_a_hundred() -> None:
    assert len(set(HOSTILE)) == 100


def _check(answer: Answer) -> Page:
    assert answer.status == 200
    page = answer.page  # the tags match, no attribute comes twice
    for element in page.elements:
        assert not [name for name in element.attributes if name.startswith("on") or name == "style"]
        assert element.name not in ("iframe", "object", "embed", "base", "img", "style", "template", "b", "u")
        if element.name in ("script", "link"):
            assert OWN.fullmatch(element["src"] or element["href"])
        for name in ("href", "action"):
            where = element[name]
            assert where is None or where == "#content" or urlsplit(where)[:2] == ("", ""), where
            assert where is None or where.startswith(("/", "#")), where
            assert where is None or not where.startswith("//"), where
    assert len(page.all("script")) == 1
    assert not UNSAFE.search("".join(page.one("html").text)), "a control or direction mark reached the text"
    return page


def test_listings_show_hostile_ids_as_text(hostile: Browser) -> None:
    for start in ("/jobs?queue=evil", "/dead?queue=evil"):
        where, found = start, list[str]()
        while where:
            page = _check(hostile.get(where))
            found += page.ids
            where = page.links.get("Next page", "")
        assert set(HOSTILE) <= set(found), "each link leads to the very id"


def test_each_job_is_shown_as_text(hostile: Browser) -> None:
    for text in HOSTILE:
        page = _check(hostile.get(f"/job?queue=evil&id={quote(text, safe='')}"))
        assert "failed" in page.one("h1").content, f"not found: {text!a}"
        assert {form["id"] for form in page.forms} == {text}
        assert all(element["dir"] is None for element in page.elements)
        assert page.all("bdi"), "its direction ends where it ends"


def test_what_the_address_says_is_text(hostile: Browser) -> None:
    for text in HOSTILE[::4]:
        word = quote(text, safe="")
        page = _check(hostile.get(f"/jobs?queue=evil&state=failed&q={word}"))
        [box] = [element for element in page.all("input") if element["type"] == "search"]
        assert box["value"] == text
        assert text in page.ids
        answer = hostile.get(f"/jobs?queue={word}")
        assert answer.status == 404
        assert len(answer.page.all("script")) == 1
        for told in (f"told={word}", f"told=retry&count={word}"):
            assert not [p for p in _check(hostile.get(f"/dead?queue=evil&{told}")).all("p") if p["class"] == "notice"]


def test_questions_name_hostile_ids_as_text_and_send_them_unchanged(hostile: Browser) -> None:
    form = hostile.page("/dead?queue=evil").form("Discard chosen")
    page = _check(hostile.submit(form, action="discard", id=HOSTILE))
    fields = [element["value"] for element in page.all("input") if element["name"] == "id"]
    assert fields == list(HOSTILE)


def test_nothing_hostile_reaches_a_header(hostile: Browser) -> None:
    token = hostile.page("/dead?queue=evil").form("Retry chosen")["token"]
    for text in HOSTILE:
        fields = {"token": token, "action": "retry", "queue": "evil", "id": text}
        answer = hostile.post("/act", fields)
        assert answer.status == 303
        where = answer.headers["Location"]
        assert where.isascii()
        assert where.isprintable()
        assert dict(parse_qsl(urlsplit(where).query))["id"] == text


def test_the_api_is_no_page(hostile: Browser) -> None:
    for text in HOSTILE:
        answer = hostile.get(f"/api/job?queue=evil&id={quote(text, safe='')}")
        assert answer.headers["Content-Type"] == "application/json"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        found: Any = answer.json
        assert found["id"] in HOSTILE
