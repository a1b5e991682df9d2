"""Where an endpoint's requests go: the pattern of its paths, and the segments of a request's path."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote_to_bytes

from ..errors import InvalidJobError
from .response import Problem

_PART = re.compile(r"(?P<literal>[A-Za-z0-9._~-]+)|\[(?P<name>[A-Za-z_][A-Za-z0-9_-]{0,63})\]")
#: Where servers leave the path as it came, before they decoded it. No standard; not every server has one.
_RAW_KEYS = "RAW_URI", "REQUEST_URI"


@dataclass(frozen=True, slots=True)
class Part:
    """One segment of a route: a literal text, or a parameter's name."""

    text: str
    is_parameter: bool


class Route:
    """``/orders/[group]/[dedupe]``: literal segments and named ones. Raises InvalidJobError for anything else."""

    def __init__(self, pattern: Any) -> None:
        if not isinstance(pattern, str) or not pattern.startswith("/"):
            raise InvalidJobError(f"route must be a str that starts with a slash, got {pattern!a:.80}")
        self.pattern = pattern
        self._parts = tuple(_part(pattern, text) for text in pattern.strip("/").split("/") if pattern != "/")
        names = [part.text for part in self._parts if part.is_parameter]
        if len(set(names)) != len(names):
            raise InvalidJobError(f"route must name each parameter once, got {pattern!r}")
        self.names = frozenset(names)

    def match(self, segments: Sequence[str]) -> dict[str, str] | None:
        """The parameters of a path that is the route, None for another. No parameter is empty."""
        if len(segments) != len(self._parts):
            return None
        found: dict[str, str] = {}
        for part, segment in zip(self._parts, segments, strict=True):
            if part.is_parameter and segment:
                found[part.text] = segment
            elif part.is_parameter or part.text != segment:
                return None
        return found

    def match_status(self, segments: Sequence[str]) -> dict[str, str] | None:
        """The same for a path below the route whose last segment is an id; it is in ``dedupe``."""
        if "dedupe" in self.names or not segments or not segments[-1]:
            return None
        found = self.match(segments[:-1])
        return None if found is None else {**found, "dedupe": segments[-1]}

    def status_url(self, script_name: str, parameters: dict[str, str], id: str) -> str:
        """The absolute path of a job's status; ``script_name`` as WSGI has it."""
        base = quote(script_name.encode("latin-1", "replace").rstrip(b"/"))
        path = "/".join(
            quote(parameters[part.text], safe="") if part.is_parameter else part.text for part in self._parts
        )
        base = f"{base}/{path}" if path else base
        if "dedupe" in self.names:
            return base
        if "/" in id or id in (".", ".."):  # clients and servers make something else of these in a path
            return f"{base}/?id={quote(id, safe='')}"
        return f"{base}/{quote(id, safe='')}"


def _part(pattern: str, text: str) -> Part:
    match = _PART.fullmatch(text)
    if match is None:
        raise InvalidJobError(
            f"route must be made of segments like 'orders' and '[group]', got {text!a:.80} in {pattern!a:.80}"
        )
    name = match["name"]
    return Part(text, False) if name is None else Part(name, True)


def split_path(environ: dict[str, Any]) -> list[str]:
    """The segments of the path below the mount point, decoded; one slash at its end does not count.

    PATH_INFO is decoded already, so that an encoded slash in it looks like any other. The raw path tells them
    apart, but only where it is the same path: what is in front may have rewritten it.
    """
    try:
        path = environ.get("PATH_INFO", "").encode("latin-1")
        script = environ.get("SCRIPT_NAME", "").encode("latin-1")
        pieces = _raw_pieces(environ, script, path)
        if pieces is None:
            pieces = path.removeprefix(b"/").split(b"/")
        segments = [piece.decode() for piece in pieces]
    except UnicodeError:
        raise Problem(400, "path-invalid", "the path must be percent-encoded UTF-8") from None
    if segments and not segments[-1]:
        segments.pop()
    return segments


def _raw_pieces(environ: dict[str, Any], script: bytes, path: bytes) -> list[bytes] | None:
    for key in _RAW_KEYS:
        raw = environ.get(key)
        if not isinstance(raw, str) or not raw.startswith("/"):
            continue
        pieces = [unquote_to_bytes(piece) for piece in raw.partition("?")[0].encode("latin-1").split(b"/")]
        if b"/".join(pieces) != script + path:
            continue
        length = -1
        for number, piece in enumerate(pieces, 1):
            length += 1 + len(piece)
            if length == len(script):  # the mount point ends here
                return pieces[number:]
    return None


def mounted(environ: dict[str, Any], prefix: str) -> dict[str, Any]:
    """A copy of ``environ`` for an application below ``prefix``, a decoded path that ``PATH_INFO`` starts with.

    For frameworks, whose own routing found the prefix.
    """
    skipped = prefix.rstrip("/").encode()
    path = environ.get("PATH_INFO", "").encode("latin-1")
    return {
        **environ,
        "SCRIPT_NAME": environ.get("SCRIPT_NAME", "") + path[: len(skipped)].decode("latin-1"),
        "PATH_INFO": path[len(skipped) :].decode("latin-1"),
    }
