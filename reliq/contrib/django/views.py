"""A queue behind HTTP, and the dashboard: the views, and the patterns that lead to them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Unpack

from django.conf import settings
from django.contrib.auth.decorators import user_passes_test
from django.core.exceptions import RequestDataTooBig
from django.db.transaction import non_atomic_requests
from django.http import HttpRequest, HttpResponse, UnreadablePostError
from django.urls import URLPattern, re_path
from django.views.decorators.csrf import csrf_exempt, csrf_protect

from ...dashboard import Dashboard
from ...dashboard.options import AdapterArguments as DashboardArguments
from ...dashboard.source import Shown
from ...http import Response, endpoint
from ...http.body import too_large
from ...http.options import AdapterArguments
from ...http.response import Problem
from ...http.route import mounted
from ...queue import Queue
from .registry import queues
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
    return _below(view(queue, authenticate=authenticate, csrf=csrf, **options))


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

    app = endpoint(queue, authenticate=None if authenticate is None else _of_request(authenticate), **options)

    def answer(request: HttpRequest, path: str) -> HttpResponse:
        with at_once():  # the answer tells what became of the job, so no transaction may keep it for later
            return _reply(app.handle(_environ(request, path)))

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


def dashboard_urls(
    shown: Shown | None = None,
    *,
    authenticate: Callable[[HttpRequest], str | None] | None = None,
    **options: Unpack[DashboardArguments],
) -> list[URLPattern]:
    """URL patterns for ``include``: a :class:`reliq.dashboard.Dashboard` below them; the options are its.

    ``shown`` is what it shows, by default the queues of the settings. Staff sees it (``django.contrib.auth``), and
    everybody else is asked to log in; ``authenticate(request)`` decides otherwise by returning a user id, or None for
    a 401.
    """
    app = Dashboard(
        list(queues.values()) if shown is None else shown,
        authenticate=_of_request(authenticate or _username),
        **options,
    )

    def view(request: HttpRequest, path: str) -> HttpResponse:
        return _reply(app.handle(_environ(request, path)))

    exempt = non_atomic_requests(csrf_exempt(view))  # its forms have a token of their own
    return _below(exempt if authenticate else user_passes_test(_may_look)(exempt))


def user_id(request: HttpRequest) -> str | None:
    """The primary key of the user who is logged in (``django.contrib.auth``), None for nobody."""
    user = getattr(request, "user", None)
    return str(user.pk) if user is not None and user.is_authenticated else None


def _may_look(user: Any) -> bool:
    return bool(user.is_active and user.is_staff)


def _username(request: HttpRequest) -> str | None:
    return str(request.user.get_username())


def _of_request(authenticate: Callable[[HttpRequest], str | None]) -> Callable[[dict[str, Any]], str | None]:
    return lambda environ: authenticate(environ[_REQUEST])


def _below(view: Callable[..., HttpResponse]) -> list[URLPattern]:
    return [re_path(r"^(?P<path>(?s:.*))\Z", view)]


def _environ(request: HttpRequest, path: str) -> dict[str, Any]:
    """What WSGI handed to Django, with paths as WSGI has them again, and the body by way of Django.

    ``path`` is the part below the mount point.
    """
    environ = dict(request.META)
    for key in ("PATH_INFO", "SCRIPT_NAME"):
        environ[key] = environ.get(key, "").encode().decode("latin-1")
    environ.pop("wsgi.input_terminated", None)  # Django reads no body without a length
    environ["wsgi.input"] = request
    environ[_REQUEST] = request
    return mounted(environ, request.path_info[: len(request.path_info) - len(path)])


def _length(request: HttpRequest) -> int:
    declared = request.META.get("CONTENT_LENGTH") or ""
    return int(declared) if declared.isascii() and declared.isdigit() and len(declared) < 19 else 0


def _reply(response: Response) -> HttpResponse:
    reply = HttpResponse(response.body, status=response.status)
    for name, value in response.headers:
        if name == "Set-Cookie":
            reply.cookies.load(value)
        else:
            reply.headers[name] = value
    return reply
