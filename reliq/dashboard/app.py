"""The WSGI application: who may, which page, which action, and what goes wrong."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Unpack

from ..errors import InvalidJobError, StorageUnavailableError
from ..facts import queue_facts
from ..http.body import read_payload
from ..http.request import read_query
from ..http.response import Problem, Response
from ..http.route import split_path
from ..lifecycle import State
from ..shown import plain
from ..validate import MAX_ID_BYTES, check_text
from .actions import Step, find_action, result_of, told
from .api import Api
from .guard import HEADERS, Session, check_host, check_origin, check_user
from .links import ASSETS, Links, asset
from .options import DashboardArguments, DashboardOptions
from .pages.asking import confirm_page, problem_page, progress_page
from .pages.dead import dead_page
from .pages.job import job_page
from .pages.jobs import jobs_page
from .pages.overview import overview_page
from .pages.view import View
from .pages.workers import workers_page
from .rates import Rates
from .reading import Listing, list_page, search, workers_of
from .source import Shown, Source

if TYPE_CHECKING:
    from wsgiref.types import StartResponse

_log = logging.getLogger("reliq.dashboard")
#: A form names at most a page of found jobs, each of whose ids may need three times its bytes.
_MAX_FORM = 512 * 1024
#: Queues of one page of the overview: each is read in a few round trips.
_QUEUES = 100


class Dashboard:
    """A WSGI application that shows queues and, where it is allowed, mends them.

    ``queues_or_storage``: a Queue, a Storage (all its queues) or a list of them. The keyword arguments are those of
    :class:`~reliq.dashboard.DashboardOptions`. It may be mounted anywhere, called from any thread, and connects with
    its first request. ``close()`` ends the thread that measures rates; what was given stays open. Raises
    InvalidJobError.
    """

    def __init__(self, queues_or_storage: Shown, **options: Unpack[DashboardArguments]) -> None:
        self.options = DashboardOptions(**options)
        self._source = Source(queues_or_storage)
        self._rates = Rates()
        self._api = Api(self._source, self._rates, self.options.show_payloads)
        self._pages: dict[str, Callable[[View], bytes]] = {
            "": self._overview,
            "jobs": self._jobs,
            "job": self._job,
            "dead": self._dead,
            "workers": self._workers,
        }

    def __call__(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        response = self.handle(environ)
        start_response(response.status_line, list(response.headers))
        return [response.body] if response.body else []

    def close(self) -> None:
        """Stop measuring rates. Idempotent; a later request begins anew."""
        self._rates.close()

    # -- requests ---------------------------------------------------------------------

    def handle(self, environ: dict[str, Any]) -> Response:
        """The answer to one request, for adapters to frameworks; never raises."""
        links = Links(environ.get("SCRIPT_NAME", ""))
        segments: list[str] = []
        try:
            segments = split_path(environ)
            response = self._answer(environ, links, segments)
        except Exception as error:
            response = _refused(links, segments, _problem(error))
        names = {name for name, _ in response.headers}
        more = tuple(header for header in HEADERS if header[0] not in names)
        response = Response(response.status, (*response.headers, *more), response.body)
        return response.without_body() if environ.get("REQUEST_METHOD") == "HEAD" else response

    def _answer(self, environ: dict[str, Any], links: Links, segments: list[str]) -> Response:
        check_host(environ, self.options)
        path = "/".join(segments)
        method = environ.get("REQUEST_METHOD", "")
        is_action = path == "act"
        if method not in (("POST",) if is_action else ("GET", "HEAD")):
            allowed = "POST" if is_action else "GET, HEAD"
            raise Problem(405, "method-not-allowed", f"allowed: {allowed}", [("Allow", allowed)])
        if path.startswith("static/"):
            return _static(path.removeprefix("static/"))
        user = check_user(environ, self.options)
        query = read_query(environ)
        if path.startswith("api/"):
            # In ASCII: the text of an error may hold lone surrogates, which have no UTF-8.
            found = json.dumps(plain(self._api.answer(path.removeprefix("api/"), query)), ensure_ascii=True)
            return _body(200, "application/json", found.encode())
        session = Session(environ, user)
        token = session.token if self.options.allow_actions else None
        mode = "Read-only" if token is None else "Actions allowed"
        view = View(links, query, token, self.options.show_payloads, mode, user, told(query))
        if is_action:
            return self._act(environ, view, session)
        if path not in self._pages:
            raise Problem(404, "not-found", "nothing is here")
        headers = [session.cookie(links.root)] if token is not None and session.is_new else []
        return _page(200, self._pages[path](view), headers)

    # -- pages ------------------------------------------------------------------------

    def _overview(self, view: View) -> bytes:
        behind = view.query.get("after", "")
        queues = [queue for queue in self._source.all() if queue.name > behind]
        shown = queues[:_QUEUES]
        facts = [queue_facts(queue) for queue in shown]
        rates = [self._rates.look(queue) for queue in shown]
        return overview_page(view, facts, rates, shown[-1].name if len(queues) > _QUEUES else None)

    def _jobs(self, view: View) -> bytes:
        queue = self._source.find(view.query.get("queue", ""))
        state, term, cursor = view.query.get("state"), view.query.get("q", ""), view.query.get("cursor")
        listing = search(queue, state, term, cursor) if term else list_page(queue, state, cursor)
        return jobs_page(view, queue_facts(queue), self._rates.look(queue), listing, state, term)

    def _job(self, view: View) -> bytes:
        queue = self._source.find(view.query.get("queue", ""))
        id = view.query.get("id", "")
        return job_page(view, queue.name, id, queue.get_status(id))

    def _dead(self, view: View) -> bytes:
        name, term, cursor = view.query.get("queue"), view.query.get("q", ""), view.query.get("cursor")
        counts = [(queue.name, queue.storage.counts(queue.name)[State.FAILED]) for queue in self._source.all()]
        counts = [(each, count) for each, count in counts if count or each == name]
        if name is None:
            name = counts[0][0] if counts else None
        if name is None:
            return dead_page(view, [], None, Listing([], None), "")
        queue = self._source.find(name)
        state = State.FAILED.value
        listing = search(queue, state, term, cursor) if term else list_page(queue, state, cursor)
        return dead_page(view, counts, name, listing, term)

    def _workers(self, view: View) -> bytes:
        name = view.query.get("queue")
        queues = self._source.all() if name is None else [self._source.find(name)]
        return workers_page(view, [worker for queue in queues for worker in workers_of(queue)], name)

    # -- actions ----------------------------------------------------------------------

    def _act(self, environ: dict[str, Any], view: View, session: Session) -> Response:
        if view.token is None:
            raise Problem(403, "read-only", "this dashboard only looks; its owner can allow actions")
        check_origin(environ)
        form = _read_form(environ)
        session.check_token(form.get("token", [""])[-1])
        name = form.get("action", [""])[-1]
        action = find_action(name)
        queue = self._source.find(form.get("queue", [""])[-1])
        ids = [check_text("id", id, MAX_ID_BYTES) for id in form.get("id", [])] if action.takes == "jobs" else []
        is_of_a_page = len(ids) == 1 and form.get("back") != ["dead"]
        dead = view.links.to("dead", queue=queue.name)
        back = view.links.to("job", queue=queue.name, id=ids[0]) if is_of_a_page else dead
        if action.takes == "jobs" and not ids:
            raise Problem(400, "nothing-chosen", "no job was chosen; go back and choose some")
        count = queue.storage.counts(queue.name)[State.FAILED] if action.takes == "all" else len(ids)
        if action.effect and form.get("confirm") != ["yes"]:
            return _page(200, confirm_page(view, name, action, queue.name, ids, count, back))
        # As many as the question named: what becomes a dead letter later was not meant.
        step = action.run(queue, ids, Step(_number(form, "done", 0), _number(form, "left", count)))
        _log.info("%s: %s on queue %r, %s", view.user or "somebody", name, queue.name, ids or "as a whole")
        if step.left:
            return _page(200, progress_page(view, name, action, queue.name, step, dead))
        return _see(view, name, queue.name, ids[0] if is_of_a_page else None, step)


def _problem(error: Exception) -> Problem:
    """What is told of an error; what nobody foresaw is told to the log only."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, InvalidJobError):
        return Problem(400, "request-invalid", str(error))
    if isinstance(error, StorageUnavailableError):
        _log.warning("the storage does not answer", exc_info=error)
        return Problem(503, "unavailable", "the storage does not answer at the moment", [("Retry-After", "5")])
    _log.error("a request failed", exc_info=error)
    return Problem(500, "internal-error", "the request failed; the cause is in the server's log")


def _see(view: View, name: str, queue: str, id: str | None, step: Step) -> Response:
    """Where the result is told: by a GET, so that loading it again repeats nothing. ``id``: whose page asked for it."""
    result = result_of(name, step)
    if name in ("pause", "resume"):
        where = view.links.to("jobs", queue=queue, **result)
    elif id is not None and name != "discard":
        where = view.links.to("job", queue=queue, id=id, **result)
    else:
        where = view.links.to("dead", queue=queue, **result)
    return _body(303, "text/plain; charset=utf-8", b"", [("Location", where)])


def _read_form(environ: dict[str, Any]) -> dict[str, list[str]]:
    form = read_payload(environ, ("application/x-www-form-urlencoded",), _MAX_FORM)
    if not isinstance(form, dict):
        raise Problem(400, "form-missing", "an action needs a form")
    return {name: value if isinstance(value, list) else [value] for name, value in form.items()}


def _number(form: dict[str, list[str]], name: str, default: int) -> int:
    text = form.get(name, [str(default)])[-1]
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise Problem(400, "form-invalid", f"{name} must be a number")
    return int(text)


def _page(status: int, body: bytes, headers: Iterable[tuple[str, str]] = ()) -> Response:
    return _body(status, "text/html; charset=utf-8", body, headers)


def _body(status: int, content_type: str, body: bytes, headers: Iterable[tuple[str, str]] = ()) -> Response:
    fixed = (
        ("Content-Type", content_type),
        ("Content-Length", str(len(body))),
        ("Cache-Control", "no-store"),
    )
    return Response(status, (*fixed, *headers), body)


def _refused(links: Links, segments: list[str], problem: Problem) -> Response:
    if segments[:1] == ["api"]:
        return problem.response()
    view = View(links, {}, None, show_payloads=False)
    return _page(problem.status, problem_page(view, problem.status, problem.detail), problem.headers)


def _static(name: str) -> Response:
    if name not in ASSETS:
        raise Problem(404, "not-found", "nothing is here")
    content, _ = asset(name)
    headers = (
        ("Content-Type", ASSETS[name]),
        ("Content-Length", str(len(content))),
        ("Cache-Control", "public, max-age=31536000, immutable"),
    )
    return Response(200, headers, content)
