"""A queue as a Flask blueprint: ``app.register_blueprint(blueprint(queue), url_prefix="/jobs")``."""

from __future__ import annotations

from typing import Unpack

import flask

from ...http import endpoint
from ...http.options import EndpointArguments
from ...http.route import mounted
from ...queue import Queue

_METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]


def blueprint(queue: Queue, *, name: str | None = None, **options: Unpack[EndpointArguments]) -> flask.Blueprint:
    """A blueprint whose every path is answered by :func:`reliq.http.endpoint`; the options are its.

    ``name`` is the blueprint's, by default made of the queue's. ``authenticate(environ)`` runs within the
    request: ``flask.session``, ``flask.g`` and ``flask.request`` are at hand. A ``before_request`` that reads the body
    leaves nothing of it. Where cookies authenticate, use a CSRF protection that goes by a header.
    """
    app = endpoint(queue, **options)
    blueprint = flask.Blueprint(name or f"reliq_{queue.name.replace('.', '_')}", __name__)

    def view(path: str = "") -> flask.Response:
        request = flask.request
        answer = app.handle(mounted(request.environ, request.path[: len(request.path) - len(path)]))
        return flask.Response([answer.body], answer.status, list(answer.headers))  # bytes would set a new length

    for rule in ("/", "/<path:path>"):
        blueprint.add_url_rule(
            rule,
            "endpoint",
            view,
            methods=_METHODS,  # the endpoint itself says which it takes
            provide_automatic_options=False,
            strict_slashes=False,
            merge_slashes=False,  # two slashes in an id are no mistake
        )
    return blueprint
