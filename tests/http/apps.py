"""What gunicorn serves in these tests. The queue is in RELIQ_URL; its jobs run in the process of the test."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reliq import Queue
from reliq.http import Endpoint, endpoint

if TYPE_CHECKING:
    import flask


def plain() -> Endpoint:
    """An endpoint and nothing else."""
    return endpoint(Queue("doors"), route="/there/[place]/[dedupe]", max_body=2000)


def site(queue: Queue | None = None) -> flask.Flask:
    """A Flask application with pages of its own, sessions, and two doors."""
    import flask

    from reliq.contrib.flask import blueprint

    queue = queue or Queue("doors")
    app = flask.Flask(__name__)
    app.secret_key = "not a secret"

    @app.post("/login/<user>")
    def login(user: str) -> str:
        flask.session["user"] = user
        return "welcome"

    def by_session(environ: object) -> str | None:
        return flask.session.get("user")

    @app.after_request
    def mark(response: flask.Response) -> flask.Response:
        response.headers["X-Site"] = "flask"
        return response

    app.register_blueprint(blueprint(queue), url_prefix="/jobs")
    mine = blueprint(queue, name="mine", route="/[color]/[dedupe]", authenticate=by_session)
    app.register_blueprint(mine, url_prefix="/über")
    return app
