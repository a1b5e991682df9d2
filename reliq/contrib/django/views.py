"""The view, and the pattern that leads to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Unpack

from django.conf import settings
from django.core.exceptions import RequestDataTooBig
from django.db.transaction import non_atomic_requests
from django.http import HttpRequest, HttpResponse, UnreadablePostError
from django.urls import URLPattern, re_path
from django.views.decorators.csrf import csrf_exempt, csrf_protect

from ...http import Response, endpoint
from ...http.body import too_large
from ...http.options import AdapterArguments
from ...http.response import Problem
from ...http.route import mounted
from ...queue import Queue
from .transactions import at_once

_REQUEST = "reliq.django.request"


def urls(
    queue: Queue,
    *,
    authenticate: Callable[[HttpRequest], str | None] | None = None,
    csrf: bool = True,
    **options: Unpack[AdapterArguments],
) -> list[URLPattern]:
    """URL patterns for ``include``: every path below them is answered by :func:`view`."""
    return [re_path(r"^(?P<path>(?s:.*))\Z", view(queue, authenticate=authenticate, csrf=csrf, **options))]


def view(
    queue: Queue,
    *,
    authenticate: Callable[[HttpRequest], str | None] | None = None,
    csrf: bool = True,
    **options: Unpack[AdapterArguments],
) -> Callable[..., HttpResponse]:
    """A view that answers as :func:`reliq.http.endpoint`; the options are its.

    ``authenticate(request)`` returns a user id or None; :func:`user_id` is one for Django's own users. ``csrf``:
    whether a POST needs Django's token, as it must wherever a cookie authenticates; refusals of that kind are Django's
    own pages. The view takes what its pattern captures as ``path``: the part below the mount point.
    """

    def of_request(environ: dict[str, Any]) -> str | None:
        return None if authenticate is None else authenticate(environ[_REQUEST])

    app = endpoint(queue, authenticate=None if authenticate is None else of_request, **options)

    def answer(request: HttpRequest, path: str) -> HttpResponse:
        environ = mounted(_environ(request), request.path_info[: len(request.path_info) - len(path)])
        with at_once():  # the answer tells what became of the job, so no transaction may keep it for later
            return _reply(app.handle(environ))

    protected = csrf_protect(answer) if csrf else answer

    def view(request: HttpRequest, path: str = "") -> HttpResponse:
        if not csrf or request.method != "POST" or _length(request) > app.max_body:
            return answer(request, path)  # what is too long is refused before it is read, token or not
        try:
            _ = request.body  # kept: looking for the token in a form would use it up
        except RequestDataTooBig:
            return _reply(too_large(settings.DATA_UPLOAD_MAX_MEMORY_SIZE).response())
        except UnreadablePostError:
            return _reply(Problem(400, "body-unreadable", "the body could not be read to its end").response())
        return protected(request, path)

    # Exempt from the middleware's check, which comes above; and from ATOMIC_REQUESTS, for no transaction should be
    # open while somebody waits for a result.
    exempt: Callable[..., HttpResponse] = non_atomic_requests(csrf_exempt(view))
    return exempt


def user_id(request: HttpRequest) -> str | None:
    """The primary key of the user who is logged in (``django.contrib.auth``), None for nobody."""
    user = getattr(request, "user", None)
    return str(user.pk) if user is not None and user.is_authenticated else None


def _environ(request: HttpRequest) -> dict[str, Any]:
    """What WSGI handed to Django, with paths as WSGI has them again, and the body by way of Django."""
    environ = dict(request.META)
    for key in ("PATH_INFO", "SCRIPT_NAME"):
        environ[key] = environ.get(key, "").encode().decode("latin-1")
    environ.pop("wsgi.input_terminated", None)  # Django reads no body without a length
    environ["wsgi.input"] = request
    environ[_REQUEST] = request
    return environ


def _length(request: HttpRequest) -> int:
    declared = request.META.get("CONTENT_LENGTH") or ""
    return int(declared) if declared.isascii() and declared.isdigit() and len(declared) < 19 else 0


def _reply(response: Response) -> HttpResponse:
    reply = HttpResponse(response.body, status=response.status)
    for name, value in response.headers:
        reply.headers[name] = value
    return reply
