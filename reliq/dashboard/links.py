"""Where things are below the place that the dashboard is mounted at."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files
from urllib.parse import quote, urlencode

#: The files of ``static/`` by name, with their types.
ASSETS = {
    "dashboard.css": "text/css; charset=utf-8",
    "dashboard.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}


class Links:
    """Absolute paths, percent-encoded; ``script_name`` as WSGI has it."""

    def __init__(self, script_name: str) -> None:
        self._base = quote(script_name.encode("latin-1", "replace").rstrip(b"/"))

    @property
    def root(self) -> str:
        """The overview."""
        return f"{self._base}/"

    def to(self, page: str, **query: object) -> str:
        """A page; None leaves a parameter out."""
        asked = {name: value for name, value in query.items() if value is not None}
        return f"{self._base}/{page}" + (f"?{urlencode(asked)}" if asked else "")

    def asset(self, name: str) -> str:
        """A file of ``static/``, by an address that changes with its content."""
        return self.to(f"static/{name}", v=asset(name)[1])


@cache
def asset(name: str) -> tuple[bytes, str]:
    """The content of a file of ``static/`` and what names this content."""
    content = files(__package__).joinpath("static", name).read_bytes()
    return content, hashlib.sha256(content).hexdigest()[:16]
