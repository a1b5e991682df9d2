"""Any WSGI application as a blueprint: ``app.register_blueprint(mount(wsgi_app, "admin"), url_prefix="/admin")``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import flask
from werkzeug.wrappers import Response

from ...http.route import mounted

_METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]


def mount(app: Callable[[dict[str, Any], Any], Iterable[bytes]], name: str) -> flask.Blueprint:
    """A blueprint called ``name`` that hands each of its requests to the WSGI application ``app``.

    ``app`` gets the prefix as ``SCRIPT_NAME`` and the rest as ``PATH_INFO``. The hooks of the Flask application
    (``before_request``: a login, say) and of the blueprint run around it.
    """
    blueprint = flask.Blueprint(name, __name__)

    def view(path: str = "") -> Response:
        request = flask.request
        return Response.from_app(app, mounted(request.environ, request.path[: len(request.path) - len(path)]))

    for rule in ("/", "/<path:path>"):
        blueprint.add_url_rule(
            rule,
            "app",
            view,
            methods=_METHODS,  # the application says which it takes
            provide_automatic_options=False,
            strict_slashes=False,
            merge_slashes=False,
        )
    return blueprint
