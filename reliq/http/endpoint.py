"""The endpoint: from a WSGI request to a verb of the queue and back."""

from __future__ import annotations

import base64
import logging
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Unpack

from ..errors import (
    CallTimeoutError,
    InvalidJobError,
    JobCancelledError,
    JobFailedError,
    JobNotFoundError,
    NotConfirmedError,
    OutcomeUnknownError,
    QueueFullError,
    ResultExpiredError,
    SerdeError,
    StorageError,
    StorageUnavailableError,
)
from ..identity import unique_name
from ..job import EnqueueResult, JobStatus
from ..lifecycle import State
from ..options import JobOptions
from ..queue import Queue
from ..serde import as_bytes
from ..validate import MAX_HEADERS_BYTES, MAX_ID_BYTES, check_headers, check_text
from .body import check_accepts, read_payload, too_large
from .options import EndpointArguments, EndpointOptions
from .request import OWN_PARAMETERS, ids_of, read_query, read_wait, the_one
from .response import Problem, Response, document, id_header, no_content
from .route import Route, split_path

if TYPE_CHECKING:
    from wsgiref.types import StartResponse

_log = logging.getLogger("reliq.http")
#: What a client that came at a bad moment is told to wait, in seconds.
RETRY_AFTER = 5
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_READ = ("GET", "HEAD", "OPTIONS")
_MISSING = object()


def endpoint(queue: Queue, **options: Unpack[EndpointArguments]) -> Endpoint:
    """A WSGI callable that enqueues into ``queue`` and tells what became of its jobs.

    The keyword arguments are those of :class:`~reliq.http.EndpointOptions`; the answers are listed in
    :mod:`reliq.http`. It may be mounted anywhere, called from any thread, and connects with its first request.
    """
    return Endpoint(queue, EndpointOptions(**options))


class Endpoint:
    """See :func:`endpoint`. ``handle`` is for adapters to frameworks; it never raises."""

    def __init__(self, queue: Queue, options: EndpointOptions) -> None:
        if not isinstance(queue, Queue):
            raise InvalidJobError(f"queue must be a Queue, got {type(queue).__name__}")
        if options.job_options:
            JobOptions.of(queue.options, options.job_options)
        self.queue = queue
        self.options = options
        self.max_body = options.max_body or queue.options.max_payload_bytes
        self._accepts = check_accepts(options.accepts)
        self._route = Route(options.route)
        self._is_kept_apart = options.private and options.authenticate is not None

    def __call__(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        response = self.handle(environ)
        start_response(response.status_line, list(response.headers))
        return [response.body] if response.body else []

    def handle(self, environ: dict[str, Any]) -> Response:
        """The answer to one request."""
        try:
            response = self._answer(environ)
        except Problem as problem:
            response = problem.response()
        except StorageUnavailableError:
            _log.warning("queue %r: the storage does not answer", self.queue.name, exc_info=True)
            response = _unavailable("unavailable", "the queue cannot be reached at the moment").response()
        except SerdeError:  # those of payloads were caught where the payload was
            _log.warning("queue %r: a result has no JSON form", self.queue.name, exc_info=True)
            response = _unreadable().response()
        except Exception:
            _log.exception("queue %r: a request failed", self.queue.name)
            response = Problem(500, "internal-error", "the request failed; the cause is in the server's log").response()
        return response.without_body() if environ.get("REQUEST_METHOD") == "HEAD" else response

    def _answer(self, environ: dict[str, Any]) -> Response:
        method = environ.get("REQUEST_METHOD", "")
        segments = split_path(environ)
        parameters = self._route.match(segments)
        allowed: tuple[str, ...] = (*_READ, "POST")
        if parameters is None:
            parameters, allowed = self._route.match_status(segments), _READ
        if parameters is None:
            raise Problem(404, "not-found", "nothing is here")
        if method not in allowed:
            raise Problem(405, "method-not-allowed", f"allowed: {', '.join(allowed)}", [("Allow", ", ".join(allowed))])
        if method == "OPTIONS":
            return no_content([("Allow", ", ".join(allowed))])
        user = self._authenticate(environ)
        query = read_query(environ)
        wait = read_wait(query, self.options.max_wait)
        if method == "POST":
            return self._post(environ, parameters, query, wait, user)
        return self._get(parameters, query, wait, user)

    def _authenticate(self, environ: dict[str, Any]) -> str | None:
        if self.options.authenticate is None:
            return None
        user = self.options.authenticate(environ)
        if user is None:
            challenge = [("WWW-Authenticate", self.options.challenge)]
            raise Problem(401, "unauthenticated", "this needs authentication", challenge)
        return check_text("the user id that authenticate returned", user, MAX_HEADERS_BYTES)

    # -- enqueue ----------------------------------------------------------------------

    def _post(
        self,
        environ: dict[str, Any],
        parameters: dict[str, str],
        query: dict[str, str],
        wait: float | None,
        user: str | None,
    ) -> Response:
        id = the_one("id", ids_of(environ, parameters, query))
        options: dict[str, Any] = dict(self.options.job_options)
        group = the_one("group", {"[group]": parameters.get("group"), "?group": query.get("group")})
        if group is not None:
            options["group"] = group
        options["headers"] = self._headers(options.get("headers"), parameters, query, user)
        if id is None and not self.queue.name.endswith(".fifo"):
            # Made here, so that a client whose outcome is unknown can be told what to repeat.
            id = unique_name(16)
        payload = read_payload(environ, self._accepts, self.max_body)
        answer = self._enqueue(id, payload, options)
        headers = [id_header(answer.id), ("X-Job-Status", answer.status)]
        where = self._route.status_url(environ.get("SCRIPT_NAME", ""), parameters, answer.id)
        status = None
        if answer.status != "queued" and self._is_kept_apart:
            # What is told of a known id comes from one look, together with whose it is.
            status = self._find(answer.id, user)
            if status is None:
                raise Problem(409, "id-taken", "the id belongs to another job", [id_header(answer.id)], id=answer.id)
        if answer.state == State.COMPLETED or wait is not None:
            try:
                return self._end_of(answer.id, user, wait or 0.0, headers, status, where)
            except StorageError:
                if answer.state == State.COMPLETED:
                    raise
                # It was accepted: an error would make the client send it again, perhaps as another job.
                _log.warning("queue %r: an accepted job cannot be followed", self.queue.name, exc_info=True)
        return document(202, _accepted(answer), [*headers, ("Location", where)])

    def _enqueue(self, id: str | None, payload: Any, options: dict[str, Any]) -> EnqueueResult:
        known = {} if id is None else {"id": id}
        headers = [] if id is None else [id_header(id)]
        try:
            return self.queue.enqueue(id, payload, **options)
        except QueueFullError as error:
            raise Problem(429, "queue-full", "the queue is full", [("Retry-After", str(RETRY_AFTER))]) from error
        except (OutcomeUnknownError, NotConfirmedError) as error:
            _log.warning("queue %r: the outcome of an enqueue is unknown", self.queue.name, exc_info=True)
            detail = "the job may or may not have been accepted; repeating the request with its id is safe"
            raise _unavailable("outcome-unknown", detail, headers, **known) from error
        except InvalidJobError as error:
            raise self._refused(error, payload) from error

    def _refused(self, error: InvalidJobError, payload: Any) -> Exception:
        """Whose fault it was: the size of the payload, its kind, another argument, or what was stored before."""
        try:
            size = len(as_bytes(self.queue.options.payload_serde.dumps(payload)))
        except Exception:
            return Problem(400, "payload-invalid", f"the payload cannot be taken: {error}")
        if size > self.queue.options.max_payload_bytes:
            return too_large(self.queue.options.max_payload_bytes)
        if isinstance(error, SerdeError):  # not of this payload: the result of a completed job
            return _unreadable()
        return Problem(400, "job-invalid", str(error))

    def _headers(
        self,
        fixed: Mapping[str, str] | None,
        parameters: Mapping[str, str],
        query: Mapping[str, str],
        user: str | None,
    ) -> dict[str, str]:
        """What the handler gets beside the payload. Only this writes ``user-id``: no parameter can."""
        own = {name: value for name, value in parameters.items() if name not in ("group", "dedupe")}
        asked = {name: value for name, value in query.items() if name not in OWN_PARAMETERS}
        headers = dict(fixed or {})
        for name in {**asked, **own}:
            value = the_one(name, {f"[{name}]": own.get(name), f"?{name}": asked.get(name)})
            if _CONTROL.search(name) or _CONTROL.search(value or ""):
                raise Problem(400, "parameter-invalid", f"parameter {name!a:.80} must not hold control characters")
            headers[f"param-{name}"] = value or ""
        headers.pop("user-id", None)
        if user is not None:
            headers["user-id"] = user
        try:
            return check_headers(headers)
        except InvalidJobError as error:
            raise Problem(431, "parameters-too-large", f"the parameters of the URL are too long: {error}") from error

    # -- status -----------------------------------------------------------------------

    def _get(
        self, parameters: Mapping[str, str], query: Mapping[str, str], wait: float | None, user: str | None
    ) -> Response:
        given = {"the path": parameters.get("dedupe"), "?id": query.get("id"), "?dedupe": query.get("dedupe")}
        id = the_one("id", given)
        if id is None:
            raise Problem(400, "id-missing", "which job? Give its id in the path or as ?id=")
        try:
            check_text("id", id, MAX_ID_BYTES)
        except InvalidJobError as error:
            raise Problem(400, "job-invalid", str(error)) from error
        status = self._find(id, user)
        if status is None:
            raise Problem(404, "job-not-found", "no such job", id=id)
        if wait is None:
            return document(200, self._document(status), [id_header(id)])
        return self._end_of(id, user, wait, [id_header(id)], status)

    def _find(self, id: str, user: str | None) -> JobStatus | None:
        """A job that ``user`` may see."""
        status = self.queue.get_status(id)
        if status is not None and self._is_kept_apart and status.headers.get("user-id") != user:
            return None
        return status

    def _end_of(
        self,
        id: str,
        user: str | None,
        wait: float,
        headers: list[tuple[str, str]],
        status: JobStatus | None = None,
        where: str | None = None,
    ) -> Response:
        """The result of a job, or why there is none. ``status`` is a look at it that was just taken."""
        if status is None or status.state not in (State.COMPLETED, State.FAILED):
            if wait > 0:
                try:
                    self.queue.wait(id, wait)
                except JobCancelledError as error:
                    raise Problem(410, "job-cancelled", "the job was cancelled", [id_header(id)], id=id) from error
                except (CallTimeoutError, JobFailedError, JobNotFoundError, ResultExpiredError, SerdeError):
                    pass  # told by what is read now, which also says whose job it is
            status = self._find(id, user)
        if status is None:
            raise Problem(410, "job-gone", "the job is gone", [id_header(id)], id=id)
        if status.state == State.FAILED:
            error_text = {"error": status.error} if self.options.show_errors and status.error else {}
            detail = f"the job failed after {status.attempts} attempt(s)"
            raise Problem(500, "job-failed", detail, [id_header(id)], id=id, state=status.state, **error_text)
        facts = self._document(status)
        if status.state != State.COMPLETED:
            return document(202, facts, headers if where is None else [*headers, ("Location", where)])
        if "result" not in facts and "result_base64" not in facts:
            raise Problem(
                409,
                "result-expired",
                "the job completed, but its result is past its time to live",
                [id_header(id)],
                id=id,
            )
        return document(200, facts, headers)

    def _document(self, status: JobStatus) -> dict[str, Any]:
        """What clients see of a job: never its payload, headers, workers or tracebacks."""
        facts: dict[str, Any] = {
            "id": status.id,
            "state": status.state,
            "attempts": status.attempts,
            "max_attempts": status.max_attempts,
            "created_at": status.created_at,
            "updated_at": status.updated_at,
        }
        if status.due_at is not None:
            facts["due_at"] = status.due_at
        if status.state == State.COMPLETED:
            facts |= self._result(status)
        elif self.options.show_errors and status.error is not None:
            facts["error"] = status.error
        return facts

    def _result(self, status: JobStatus) -> dict[str, Any]:
        result = status.result
        if result is None:  # it is None, or there is none any more
            try:
                result = self.queue.get_result(status.id, _MISSING)
            except (JobFailedError, SerdeError):  # another life of the id by now
                return {}
        if result is _MISSING:
            return {}
        if isinstance(result, bytes):  # JSON has no bytes
            return {"result_base64": base64.b64encode(result).decode()}
        return {"result": result}


def _accepted(answer: EnqueueResult) -> dict[str, Any]:
    return {"id": answer.id, "status": answer.status, "state": answer.state}


def _unavailable(code: str, detail: str, headers: Iterable[tuple[str, str]] = (), **members: Any) -> Problem:
    return Problem(503, code, detail, [("Retry-After", str(RETRY_AFTER)), *headers], **members)


def _unreadable() -> Problem:
    return Problem(500, "result-unreadable", "the job's result cannot be read")
