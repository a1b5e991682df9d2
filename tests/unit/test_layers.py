"""Imports go down only. Each rule has its reason; a module that needs a new import changes the rule first."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "reliq"


@dataclass(frozen=True)
class Import:
    """One import statement: the module it names, and whether it runs when the importing module is loaded."""

    target: str
    line: int
    is_top_level: bool


_VALUES = ("errors", "lifecycle", "retry", "serde", "message", "job")
_STORAGE = "a storage keeps the contract: it knows no queue, no worker and no other storage"

#: module or package -> (what of reliq it may import, why). The longest name that matches counts; itself is always
#: allowed.
RULES: dict[str, tuple[tuple[str, ...], str]] = {
    "errors": ((), "everybody raises them, so they can need nobody"),
    "lifecycle": ((), "the one table is pure: no clock, no storage"),
    "retry": (("errors", "lifecycle"), "how long to wait is arithmetic"),
    "serde": (("errors", "lifecycle", "retry"), "values to bytes, whatever carries them"),
    "message": (("errors", "lifecycle", "retry", "serde"), "the envelope is a format, not a place"),
    "job": (("errors", "lifecycle", "retry", "serde", "message"), "what people see of a job talks to no storage"),
    "identity": ((), "a name for what nobody named"),
    "context": (("job",), "which job runs is asked for at the bottom, by whoever enqueues"),
    "service": (("errors",), "a thread with a stop event knows nothing of jobs"),
    "storage.base": (
        (*_VALUES, "queue"),  # in one method, which hands out what people asked for by its name
        "the contract is written in plain values; it must not know who keeps it",
    ),
    "storage.registry": (
        ("errors", "storage.base", "storage.sql", "storage.redis"),
        "it makes storages by URL, and is the only one that knows them all",
    ),
    "storage.sql": ((*_VALUES, "identity", "service", "validate", "storage.base"), _STORAGE),
    "storage.redis": ((*_VALUES, "identity", "service", "validate", "storage.base"), _STORAGE),
    "http": (
        ("errors", "lifecycle", "identity", "job", "serde", "validate", "options", "queue"),
        "a door speaks the verbs of a queue: it knows no storage, no envelope and no worker",
    ),
    "contrib": (
        ("errors", "identity", "job", "options", "validate", "http", "dashboard", "queue", "cli"),
        "an adapter hands requests to the endpoint, jobs to queues and commands to the worker's, and decides nothing "
        "itself",
    ),
    "contrib.prometheus": (
        ("errors", "facts", "hooks", "job", "queue", "storage.base", "worker.pool"),
        "it counts by the hooks of queues and pools and reads what everybody is shown",
    ),
    "contrib.opentelemetry": (
        ("errors", "job", "queue"),
        "spans go around the verbs and the runs of a queue, wherever it lives",
    ),
    "shown": ((), "how values look to people needs nothing of what they are"),
    "facts": (
        ("lifecycle", "job", "queue", "storage.base"),
        "what is told of queues and jobs is read by their public face, whoever shows it",
    ),
    "dashboard": (
        (*_VALUES, "validate", "queue", "storage.base", "listing", "service", "facts", "shown", "http"),
        "it looks by the verbs and the contract, as any application could: it runs no jobs and knows no storage",
    ),
    "tasks": (
        ("errors", "job", "options", "schedules", "serde", "validate"),
        "a handler with names on top of the verbs: it knows no storage and no worker",
    ),
    "pytest_plugin": (
        ("queue", "storage.sql.memory", "testing"),
        "pytest loads it in every run of a machine that has reliq: what a fixture needs, that fixture loads",
    ),
    "cron": (("errors",), "it adapts one library"),
    "schedule": (
        ("errors", "lifecycle", "validate", "storage.base", "cron"),
        "when a schedule ticks and what a tick enqueues is arithmetic: no clock, no storage",
    ),
    "ticks": (
        ("errors", "job", "schedule", "storage.base"),
        "any reaper carries out any schedule, so nothing of a queue's options may be needed",
    ),
}

#: What the parts above the storages must never name: (importers, forbidden, why).
FORBIDDEN: list[tuple[tuple[str, ...], tuple[str, ...], str]] = [
    (
        ("queue", "dead_letters", "listing", "schedules"),
        ("storage.sql", "storage.redis", "worker", "reaper", "ticks", "service"),
        "the verbs speak the contract, so that every storage serves them, and run no threads",
    ),
    (
        ("worker", "reaper", "ticks"),
        ("storage.sql", "storage.redis", "storage.registry", "dead_letters", "listing", "schedules", "cli", "http"),
        "workers speak the contract and use a queue by its public face",
    ),
    (
        ("queue", "worker", "reaper", "service", "storage", *_VALUES),
        ("testing", "pytest_plugin", "cli", "http", "contrib", "dashboard"),
        "what runs in production needs no tools",
    ),
    (("http", "dashboard"), ("contrib",), "both are plain WSGI, whatever they are mounted in"),
    (("dashboard",), ("cli",), "a browser needs no command line"),
    (
        ("testing",),
        ("pytest_plugin", "cli", "http", "contrib", "dashboard"),
        "the helpers are for tests of queues, in any runner of tests",
    ),
]

#: Client libraries: only here may they be imported when a module is loaded. A process pays for the one it uses.
CLIENTS = {
    "redis": "storage.redis",
    "valkey": "storage.redis",
    "watchdog": "storage.sql.bell",
    "flask": "contrib.flask",
    "werkzeug": "contrib.flask",
    "click": "contrib.flask",
    "django": "contrib.django",
    "cronsim": "cron",
    "prometheus_client": "contrib.prometheus",
    "opentelemetry": "contrib.opentelemetry",
}
#: Loaded when somebody needs what is behind them, never with the package.
LAZY = ("cron", "tasks", "testing")


def modules() -> dict[str, Path]:
    """Every module of the package by its name without ``reliq.``; ``__init__`` by that of its directory."""
    found: dict[str, Path] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = list(path.relative_to(PACKAGE).with_suffix("").parts)
        if parts[-1] == "__init__":
            parts.pop()
        found[".".join(parts)] = path
    return found


MODULES = modules()


def imports(name: str) -> list[Import]:
    """Everything that a module imports, by absolute name."""
    path = MODULES[name]
    package = ["reliq", *name.split(".")] if name else ["reliq"]
    if path.name != "__init__.py":
        package.pop()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [
        Import(target, node.lineno, is_top_level)
        for node, is_top_level in _statements(tree, True)
        for target in _targets(node, package)
    ]


def _statements(node: ast.AST, is_top_level: bool) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child, is_top_level
        elif isinstance(child, ast.If) and _is_type_checking(child.test):
            continue  # never runs
        else:
            inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from _statements(child, is_top_level and not inside)


def _is_type_checking(test: ast.expr) -> bool:
    return ast.unparse(test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def _targets(node: ast.Import | ast.ImportFrom, package: list[str]) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    base = package[: len(package) - node.level + 1] if node.level else []
    base = [*base, *(node.module.split(".") if node.module else [])]
    # ``from ..storage import base`` imports a module; ``from ..errors import ReliqError`` a name.
    return [
        ".".join([*base, alias.name])
        if ".".join([*base[1:], alias.name]) in MODULES and base[0] == "reliq"
        else ".".join(base)
        for alias in node.names
    ]


def _is_within(name: str, area: str) -> bool:
    return name == area or name.startswith(f"{area}.")


def _own(target: str) -> str | None:
    """The name inside the package, or None for anything else."""
    return target.removeprefix("reliq").removeprefix(".") if _is_within(target, "reliq") else None


def _rule(name: str) -> str | None:
    return max((area for area in RULES if _is_within(name, area)), key=len, default=None)


@pytest.mark.parametrize("name", MODULES)
def test_imports_go_down(name: str) -> None:
    area = _rule(name)
    if area is None:
        return
    allowed, reason = RULES[area]
    for found in imports(name):
        own = _own(found.target)
        if own is None or (own in ("storage", "storage.sql", "storage.redis") and _is_within(name, own)):
            continue
        fits = any(_is_within(own, other) for other in (area, *allowed))
        assert fits, f"{MODULES[name]}:{found.line} imports reliq.{own}; {area} may not, for {reason}"


@pytest.mark.parametrize("name", MODULES)
def test_the_upper_layers_keep_to_the_public_faces(name: str) -> None:
    for importers, forbidden, reason in FORBIDDEN:
        if not any(_is_within(name, area) for area in importers):
            continue
        for found in imports(name):
            own = _own(found.target) or ""
            bad = any(_is_within(own, area) and not _is_within(name, area) for area in forbidden)
            if name == "storage.registry" or (_is_within(name, "storage") and _is_within(own, "storage")):
                continue
            assert not bad, f"{MODULES[name]}:{found.line} imports reliq.{own}; it may not, for {reason}"


@pytest.mark.parametrize("name", MODULES)
def test_client_libraries_are_loaded_only_where_they_are_used(name: str) -> None:
    for found in imports(name):
        home = CLIENTS.get(found.target.partition(".")[0])
        if home is None or _is_within(name, home):
            continue
        assert not found.is_top_level, f"{MODULES[name]}:{found.line} loads {found.target}; only {home} may"


@pytest.mark.parametrize("name", MODULES)
def test_what_an_extra_is_for_is_loaded_only_when_it_is_needed(name: str) -> None:
    for found in imports(name):
        own = _own(found.target)
        assert own not in LAZY or not found.is_top_level, f"{MODULES[name]}:{found.line} loads reliq.{own}"


def test_relative_imports_are_understood() -> None:
    """The control of the tests above: they would pass on anything that they cannot read."""
    assert {"reliq.lifecycle"} <= {found.target for found in imports("storage.base")}
    assert {"reliq.errors", "reliq.storage.base"} <= {found.target for found in imports("storage.registry")}
    inside = [found for found in imports("storage.registry") if _is_within(found.target, "reliq.storage.redis")]
    assert inside
    assert not any(found.is_top_level for found in inside)


def test_the_bindings_of_the_rules_exist() -> None:
    """A rule for a module that was renamed would hold nothing."""
    for area in RULES:
        assert any(_is_within(name, area) for name in MODULES), area


def test_no_module_imports_itself_in_a_circle() -> None:
    """At load time the imports of the package form no cycle, so that any module can be imported first."""
    edges = {
        name: {
            own
            for found in imports(name)
            if found.is_top_level and (own := _own(found.target)) and own in MODULES and own != name
        }
        for name in MODULES
        if name
    }
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, f"a circle: {' -> '.join([*path, name])}"
        if name not in done:
            for other in edges.get(name, ()):
                visit(other, (*path, name))
            done.add(name)

    for name in edges:
        visit(name, ())
