"""The extension: ``reliq = Reliq(app)``, or ``reliq.init_app(app)`` in an application factory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Unpack

import flask

from ...dashboard import Dashboard
from ...dashboard.options import DashboardArguments
from ...errors import InvalidJobError
from ...http.options import EndpointArguments
from ...options import QueueArguments
from ...queue import Handler, Queue
from ...validate import check_function
from .command import group
from .door import blueprint
from .mount import mount

_KEY = "reliq"
#: Config keys that hold an option of every queue.
_OPTIONS = {
    f"RELIQ_{name.upper()}": name
    for name in (
        "max_attempts", "result_ttl", "dedup_ttl", "dead_ttl", "visibility_timeout", "time_limit", "max_payload_bytes",
    )
}  # fmt: skip
_KEYS = (*_OPTIONS, "RELIQ_QUEUES", "RELIQ_URL")


@dataclass(slots=True)
class _State:
    """What belongs to one application: its config, and the queues that were used."""

    app: flask.Flask
    extension: Reliq
    defaults: Mapping[str, Any]
    configured: Mapping[str, Mapping[str, Any]]
    made: dict[str, Queue] = field(default_factory=dict)
    dashboards: list[Dashboard] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def queues(self) -> list[Queue]:
        """All of them, by name."""
        return self.extension.queues(self.app)


class Reliq:
    """Queues for Flask applications.

    ::

        reliq = Reliq()

        @reliq.handler("emails", max_attempts=5)
        def send(job): ...                      # within an application context

        def create_app():
            app = Flask(__name__)
            app.config["RELIQ_URL"] = "redis://localhost:6379/0"
            reliq.init_app(app)
            return app

        reliq["emails"].enqueue("welcome-1", {"to": ...})       # in a view

    Each application has queues of its own, made when they are first used. Config: ``RELIQ_URL`` (default: the
    environment variable of that name), ``RELIQ_QUEUES`` (a dict: name of a queue to its options, ``url`` among
    them), and defaults for all queues: ``RELIQ_MAX_ATTEMPTS``, ``RELIQ_RESULT_TTL``, ``RELIQ_DEDUP_TTL``,
    ``RELIQ_DEAD_TTL``, ``RELIQ_VISIBILITY_TIMEOUT``, ``RELIQ_TIME_LIMIT``, ``RELIQ_MAX_PAYLOAD_BYTES``.
    """

    def __init__(self, app: flask.Flask | None = None) -> None:
        self._handlers: dict[str, tuple[Handler, dict[str, Any]]] = {}
        if app is not None:
            self.init_app(app)

    def init_app(self, app: flask.Flask) -> None:
        """Read the config of ``app`` and give it the command ``flask reliq``. Connects to nothing.

        Raises InvalidJobError for a config that is wrong, naming the key.
        """
        if _KEY in app.extensions:
            raise InvalidJobError(f"the application {app.name!r} has a Reliq already")
        for key in app.config:
            if key.startswith("RELIQ_") and key not in _KEYS:
                raise InvalidJobError(f"no config key {key}; there are: {', '.join(_KEYS)}")
        defaults = {name: app.config[key] for key, name in _OPTIONS.items() if key in app.config}
        if (url := app.config.get("RELIQ_URL")) is not None:
            defaults["url"] = url
        _make("the config RELIQ_...", "default", defaults)
        configured = app.config.get("RELIQ_QUEUES", {})
        if not isinstance(configured, Mapping) or not all(isinstance(found, Mapping) for found in configured.values()):
            raise InvalidJobError("RELIQ_QUEUES must be a dict: the name of each queue to a dict of its options")
        for name, options in configured.items():
            _make(f"RELIQ_QUEUES[{name!r}]", name, options)
        app.extensions[_KEY] = _State(app, self, defaults, configured)
        app.cli.add_command(group)

    def handler(self, name: str = "default", **options: Unpack[QueueArguments]) -> Callable[[Handler], Handler]:
        """Decorator: ``function(job)`` runs the jobs of the queue ``name`` of every application; returns it unchanged.

        Each run has an application context of its own: ``current_app``, ``g`` and what other extensions
        keep there are at hand, and torn down after the handler and the pool's ``after_execution``. ``options`` are
        those of :class:`reliq.Queue`; those in RELIQ_QUEUES stand above them.
        """
        _make("handler", name, options)

        def register(function: Handler) -> Handler:
            check_function("handler", function)
            if name in self._handlers:
                raise InvalidJobError(f"queue {name!r} has a handler already: {self._handlers[name][0]!r}")
            self._handlers[name] = function, dict(options)
            return function

        return register

    def __getitem__(self, name: str) -> Queue:
        """The queue ``name`` of the current application (``flask.current_app``)."""
        return self.queue(name)

    def queue(self, name: str = "default", app: flask.Flask | None = None) -> Queue:
        """The queue ``name`` of ``app``, by default of the current application; the same object each time.

        Raises InvalidJobError where there is neither a handler for it nor an entry in RELIQ_QUEUES.
        """
        app, state = _state(app)
        with state.lock:
            function, options = self._handlers.get(name, (None, {}))
            queue = state.made.get(name)
            if queue is None:
                if function is None and name not in state.configured:
                    raise InvalidJobError(
                        f"no queue {name!r}: it has neither a handler nor an entry in RELIQ_QUEUES; "
                        f"there are: {', '.join(self._names(state)) or 'none'}"
                    )
                options = {**state.defaults, **options, **state.configured.get(name, {})}
                queue = state.made[name] = _make("the options", name, options)
                queue.around(lambda _: app.app_context())
            if queue.function is None:
                queue.function = function
            return queue

    def queues(self, app: flask.Flask | None = None) -> list[Queue]:
        """All queues of ``app``, by default of the current application, by name."""
        app, state = _state(app)
        return [self.queue(name, app) for name in self._names(state)]

    def door(self, name: str, app: flask.Flask | None = None, **options: Unpack[EndpointArguments]) -> flask.Blueprint:
        """The queue ``name`` behind HTTP: a blueprint for ``app``, see :func:`reliq.contrib.flask.blueprint`."""
        return blueprint(self.queue(name, app), **options)

    def dashboard(
        self, app: flask.Flask | None = None, *, name: str = "reliq_dashboard", **options: Unpack[DashboardArguments]
    ) -> flask.Blueprint:
        """The queues of ``app``, by default of the current application, in a browser: a blueprint called ``name``.

        The options are those of :class:`reliq.dashboard.Dashboard`. ``authenticate(environ)`` runs within the request:
        ``flask.session`` and ``flask.g`` are at hand, and a ``before_request`` has run.
        """
        app, state = _state(app)
        dashboard = Dashboard(self.queues(app), **options)
        state.dashboards.append(dashboard)
        return mount(dashboard, name)

    def close(self, app: flask.Flask | None = None) -> None:
        """Close the queues of ``app``, by default of the current application. They open again when they are used."""
        _, state = _state(app)
        for dashboard in state.dashboards:
            dashboard.close()
        with state.lock:
            for queue in state.made.values():
                queue.close()

    def _names(self, state: _State) -> list[str]:
        return sorted({*self._handlers, *state.configured})


def _make(where: str, name: str, options: Mapping[str, Any]) -> Queue:
    """A queue; an error says ``where`` its options stand. Making one connects to nothing."""
    options = dict(options)
    try:
        return Queue(name, options.pop("url", None), **options)
    except (InvalidJobError, TypeError) as error:
        raise InvalidJobError(f"{where}: {error}") from error


def _state(app: flask.Flask | None) -> tuple[flask.Flask, _State]:
    if app is None:
        if not flask.has_app_context():
            raise InvalidJobError("outside of an application context: say which application, as in queue(name, app)")
        app = flask.current_app._get_current_object()  # type: ignore[attr-defined]  # what the proxy stands for
    if _KEY not in app.extensions:
        raise InvalidJobError(f"the application {app.name!r} has no Reliq: call init_app with it")
    return app, app.extensions[_KEY]
