"""A client without a socket, and pages as a browser's parser sees them."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from dataclasses import dataclass
from html.parser import HTMLParser
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlencode, urlsplit
from wsgiref.util import setup_testing_defaults
from wsgiref.validate import validator

from reliq.dashboard import Dashboard

VOID = {"br", "input", "link", "meta"}


@dataclass(frozen=True, slots=True, eq=False)
class Element:
    """One element, with the text directly and indirectly inside."""

    name: str
    attributes: dict[str, str | None]
    text: list[str]

    def __getitem__(self, name: str) -> Any:
        """An attribute; None when there is none."""
        return self.attributes.get(name)

    @property
    def content(self) -> str:
        return "".join(self.text)


class Page(HTMLParser):
    """The elements of a page in order; fails on tags that do not match."""

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[Element] = []
        self._open: list[Element] = []
        self.feed(source)
        self.close()
        assert not self._open, f"left open: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, dict(attrs), [])
        assert len(attrs) == len(element.attributes), f"an attribute twice: {attrs}"
        self.elements.append(element)
        if tag not in VOID:
            self._open.append(element)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop().name == tag

    def handle_data(self, data: str) -> None:
        for element in self._open:
            element.text.append(data)

    def all(self, name: str) -> list[Element]:
        return [element for element in self.elements if element.name == name]

    def one(self, name: str) -> Element:
        [found] = self.all(name)
        return found

    @property
    def links(self) -> dict[str, str]:
        return {element.content: element["href"] for element in self.all("a")}

    @property
    def ids(self) -> list[str]:
        """The jobs that are listed, by what their links lead to."""
        hrefs = [element["href"] for element in self.all("a") if element["class"] == "id"]
        return [dict(parse_qsl(urlsplit(href).query))["id"] for href in hrefs]

    @property
    def forms(self) -> list[dict[str, Any]]:
        """What each POST form sends: its fields, ``buttons``, and ``to``."""
        found: list[dict[str, Any]] = []
        for element in self.elements:
            if element.name == "form":
                found.append({"to": element["action"], "method": element["method"], "buttons": []})
            elif element.name == "input" and element["type"] == "hidden":
                found[-1][element["name"]] = element["value"]
            elif element.name == "button" and found and element["type"] == "submit":
                found[-1]["buttons"].append(element.content)
        return [form for form in found if form["method"] == "post"]

    def form(self, button: str) -> dict[str, Any]:
        """The form with this button."""
        [form] = [form for form in self.forms if button in form["buttons"]]
        return form


class Answer(NamedTuple):
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def page(self) -> Page:
        assert self.headers["Content-Type"] == "text/html; charset=utf-8"
        return Page(self.text)

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Browser:
    """Keeps a cookie and sends what browsers send. Every exchange is checked for its WSGI by the standard library."""

    def __init__(self, app: Dashboard, prefix: str = "", **environ: str) -> None:
        self.app = app
        self.prefix = prefix
        self.environ = environ
        self.cookie = ""

    def ask(self, method: str, path: str, body: bytes | None = None, **environ: Any) -> Answer:
        """``path`` with its query, below the mount point or as links name it."""
        parts = urlsplit(path.removeprefix(self.prefix) if self.prefix else path)
        given: dict[str, Any] = {
            "REQUEST_METHOD": method, "SCRIPT_NAME": self.prefix, "PATH_INFO": parts.path, "QUERY_STRING": parts.query,
            "HTTP_HOST": "localhost:8765", **self.environ,
        }  # fmt: skip
        if self.cookie:
            given["HTTP_COOKIE"] = self.cookie
        if body is not None:
            given |= {
                "CONTENT_LENGTH": str(len(body)),
                "CONTENT_TYPE": "application/x-www-form-urlencoded",
                "HTTP_ORIGIN": "http://localhost:8765",
                "wsgi.input": io.BytesIO(body),
            }
        given |= environ
        given = {name: value for name, value in given.items() if value is not None}
        setup_testing_defaults(given)
        if "HTTP_HOST" in environ and environ["HTTP_HOST"] is None:
            del given["HTTP_HOST"]
        caught: list[Any] = []

        def start_response(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
            caught.extend((status, headers))

        found: Iterable[bytes] = validator(self.app)(given, start_response)
        answer = b"".join(found)
        found.close()  # type: ignore[attr-defined]
        status, headers = caught
        assert len({name for name, _ in headers}) == len(headers)
        result = Answer(int(status[:3]), dict(headers), answer)
        if "Set-Cookie" in result.headers:
            self.cookie = result.headers["Set-Cookie"].partition(";")[0]
        return result

    def get(self, path: str, **environ: Any) -> Answer:
        return self.ask("GET", path, **environ)

    def page(self, path: str) -> Page:
        answer = self.get(path)
        assert answer.status == 200, answer.text
        return answer.page

    def post(self, path: str, fields: Any, **environ: Any) -> Answer:
        return self.ask("POST", path, urlencode(fields, doseq=True).encode(), **environ)

    def submit(self, form: dict[str, Any], **more: Any) -> Answer:
        """Press the button of a form."""
        fields = {name: value for name, value in form.items() if name not in ("to", "method", "buttons")}
        return self.post(form["to"], fields | more)

    def follow(self, answer: Answer) -> Page:
        """Where an action's answer leads."""
        assert answer.status == 303, answer.text
        return self.page(answer.headers["Location"])
