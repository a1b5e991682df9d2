"""Who may: by which name the dashboard is reached, from which site a change is asked, with which token.

A change needs all of: a POST, an ``Origin`` (or what browsers send in its place) of this very site, the session cookie,
which no other site's request carries (``SameSite=Strict``), and a token made from it that only pages of
this site can read.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from typing import Any
from urllib.parse import urlsplit

from ..http.response import Problem
from ..validate import MAX_HEADERS_BYTES, check_text
from .options import DashboardOptions

COOKIE = "reliq_dashboard"
_SESSION = re.compile(r"[0-9a-f]{64}")
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+?)\.?(?::[0-9]{1,5})?")

#: On every answer. Nothing inline, nothing from elsewhere, in nobody's frame.
HEADERS = (
    (
        "Content-Security-Policy",
        "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    ),
    ("X-Frame-Options", "DENY"),
    ("X-Content-Type-Options", "nosniff"),
    # Not no-referrer: with that browsers send "Origin: null" with the forms of this site too.
    ("Referrer-Policy", "same-origin"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
)


def check_host(environ: dict[str, Any], options: DashboardOptions) -> None:
    """Raise Problem(421) when the dashboard does not answer by the name it was reached by."""
    allowed = options.answered_hosts
    if allowed is None:
        return
    match = _HOST.fullmatch(environ.get("HTTP_HOST", "").lower())
    if match is None or match[1] not in allowed:
        raise Problem(
            421,
            "host-refused",
            "the dashboard does not answer by this name; its owner can allow it (hosts=..., or --allow-host NAME)",
        )


def check_user(environ: dict[str, Any], options: DashboardOptions) -> str:
    """The id of who is there, empty where nobody is asked. Raises Problem(401)."""
    if options.authenticate is None:
        return ""
    user = options.authenticate(environ)
    if user is None:
        challenge = [("WWW-Authenticate", options.challenge)]
        raise Problem(401, "unauthenticated", "this needs authentication", challenge)
    return check_text("the user id that authenticate returned", user, MAX_HEADERS_BYTES)


def check_origin(environ: dict[str, Any]) -> None:
    """Raise Problem(403) unless the request comes from a page of this very site."""
    host = environ.get("HTTP_HOST", "").lower()
    origin, site = environ.get("HTTP_ORIGIN"), environ.get("HTTP_SEC_FETCH_SITE")
    if site not in (None, "same-origin"):
        raise _foreign()
    if origin is None and site is None:
        origin = environ.get("HTTP_REFERER", "")
    if origin is not None and (not host or _netloc(origin) != host):
        raise _foreign()


def _netloc(url: str) -> str | None:
    try:
        parts = urlsplit(url.lower())
    except ValueError:
        return None
    return parts.netloc if parts.scheme in ("http", "https") else None


def _foreign() -> Problem:
    return Problem(403, "origin-refused", "actions are taken only from the dashboard's own pages")


class Session:
    """A browser's session: a random secret in a cookie. Nothing is kept here, so that any process may answer."""

    def __init__(self, environ: dict[str, Any], user: str) -> None:
        found = _cookie(environ.get("HTTP_COOKIE", ""))
        self.is_new = found is None
        self._secret = found or secrets.token_hex(32)
        self._user = user
        self._is_https = environ.get("wsgi.url_scheme") == "https"

    @property
    def token(self) -> str:
        """What a form must carry; bound to the session and the user."""
        return hmac.new(self._secret.encode(), f"action\0{self._user}".encode(), hashlib.sha256).hexdigest()

    def check_token(self, given: str) -> None:
        """Raise Problem(403) unless ``given`` is the token of the session that the request came with."""
        if self.is_new or not hmac.compare_digest(given.encode("utf-8", "replace"), self.token.encode()):
            raise Problem(
                403, "token-refused", "the form is not of this browser session: load the page again and repeat"
            )

    def cookie(self, path: str) -> tuple[str, str]:
        """The header that starts the session."""
        secure = "; Secure" if self._is_https else ""
        return "Set-Cookie", f"{COOKIE}={self._secret}; Path={path}; HttpOnly; SameSite=Strict{secure}"


def _cookie(header: str) -> str | None:
    for part in header.split(";"):
        name, _, value = part.strip().partition("=")
        if name == COOKIE and _SESSION.fullmatch(value):
            return value
    return None
