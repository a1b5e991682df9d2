"""What a request asks, besides its body: the parameters of its query, its ids, how long it would wait."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, unquote

from .response import Problem

MAX_PARAMETERS = 100
#: What the endpoint itself takes from a query; everything else is the handler's.
OWN_PARAMETERS = frozenset({"id", "dedupe", "group", "wait"})
_SECONDS = re.compile(r"[0-9]{1,6}(?:\.[0-9]{1,6})?")


def read_wait(query: Mapping[str, str], longest: float) -> float | None:
    """How long to wait for the end of the job, in seconds; None when that was not asked for."""
    given = query.get("wait")
    if given is None:
        return None
    if not _SECONDS.fullmatch(given):
        raise Problem(400, "wait-invalid", "wait must be a number of seconds >= 0")
    return min(float(given), longest)


def read_query(environ: dict[str, Any]) -> dict[str, str]:
    """The parameters of the query, each once."""
    try:
        pairs = parse_qsl(
            environ.get("QUERY_STRING", "").encode("latin-1").decode(),
            keep_blank_values=True,
            errors="strict",
            max_num_fields=MAX_PARAMETERS,
        )
    except UnicodeError:
        raise Problem(400, "query-invalid", "the query must be percent-encoded UTF-8") from None
    except ValueError:
        raise Problem(400, "query-invalid", f"the query must have at most {MAX_PARAMETERS} parameters") from None
    found: dict[str, str] = {}
    for name, value in pairs:
        if name in found:
            raise Problem(400, "query-invalid", f"the query must give {name!a:.80} once")
        found[name] = value
    return found


def ids_of(environ: dict[str, Any], parameters: Mapping[str, str], query: Mapping[str, str]) -> dict[str, str | None]:
    """Where the id of a new job may stand."""
    try:
        job_id = environ.get("HTTP_X_JOB_ID")
        key = environ.get("HTTP_IDEMPOTENCY_KEY")
        return {
            "[dedupe]": parameters.get("dedupe"),
            "?dedupe": query.get("dedupe"),
            "?id": query.get("id"),
            "X-Job-Id": None if job_id is None else unquote(job_id.encode("latin-1").decode(), errors="strict"),
            "Idempotency-Key": None if key is None else _unquoted(key.encode("latin-1").decode()),
        }
    except UnicodeError:
        raise Problem(400, "id-invalid", "an id in a header must be UTF-8") from None


def _unquoted(text: str) -> str:
    """A string of structured fields without its quotes; other text as it is."""
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] == '"' else text


def the_one(what: str, given: Mapping[str, str | None]) -> str | None:
    """The one value that was given, in however many places."""
    values = {place: value for place, value in given.items() if value is not None}
    if len(set(values.values())) > 1:
        raise Problem(400, "ambiguous", f"{what!a:.80} differs between {' and '.join(values)}"[:300])
    return next(iter(values.values()), None)
