"""A queue behind HTTP: one plain WSGI callable, to be mounted in any server or framework.

``app = endpoint(queue, route="/orders/[group]/[dedupe]", authenticate=whoever)``. What a client sends and gets:

===================================== ==========================================================================
request                               answer
===================================== ==========================================================================
POST a body, at the route             202 with ``X-Job-Id``: accepted, or a duplicate of a live job
POST with the id of a completed job   200 with its cached result; 409 when the result is past its TTL
POST with ``?wait=seconds``           200 with the result; 202 when the job goes on; 500 failed; 410 cancelled
GET the status of an id               200 with id, state, attempts, times, and the result of a completed job
GET with ``?wait=seconds``            as a POST with it
refused                               400, 401, 404, 405, 409, 411, 413, 415, 431; 429 when the queue is full
a storage that does not answer        503 with ``Retry-After``; ``X-Job-Id`` where the job may have been accepted
===================================== ==========================================================================

Every answer is JSON: a document with at least ``id`` and ``state``, or a problem of RFC 9457 whose ``code`` names it.

**Where.** A ``route`` is made of literal segments and ``[names]``. POST goes to the route. A job's status is at the
route too when it names ``[dedupe]``, else one segment below it (``/<id>``), and always at ``?id=`` of the route.
Segments are percent-encoded UTF-8. A ``/`` within an id is ``%2F``; only servers that pass on the raw URI
(gunicorn, uWSGI, Werkzeug) can tell it from a real one. ``?id=`` works everywhere.

**The id** of a new job is the ``[dedupe]`` of the route, ``?dedupe=`` or ``?id=``, or the header ``X-Job-Id``
(percent-encoded UTF-8, as in answers) or ``Idempotency-Key``; two that differ are refused. Without any the job gets a
unique id, on a ``.fifo`` queue one made of its content. ``[group]`` or ``?group=`` is its group.

**What the handler gets.** The payload: JSON as it parses; a form as a dict of str, of lists where a name was repeated;
a file of a multipart form as ``{"filename", "content_type", "size", "content"}``, its content in base64; text as a str;
no body and no Content-Type as None. Everything else of the route and the query is in ``job.headers`` as
``param-<name>``, and who sent it as ``user-id``; 8 KiB in all.

**Who may.** ``authenticate`` is asked before anything is read, also for a status. What it lets in is kept apart: a user
sees the jobs that this user sent, those of others are 404, and a POST with such an id is 409 (an id is free
again when its job has failed for good, or its record has gone: let ids name their users where that matters). A browser
sends its cookies with forms of other sites: where ``authenticate`` goes by a cookie, check the origin too.
There are no CORS headers.
"""

from __future__ import annotations

from .endpoint import Endpoint, endpoint
from .options import EndpointOptions
from .response import Response

__all__ = ["Endpoint", "EndpointOptions", "Response", "endpoint"]
