"""The Grafana dashboard that comes with the package asks for what is really exported."""

from __future__ import annotations

import json
import re
from contextlib import closing
from importlib.resources import files
from typing import Any

import pytest

from reliq import MemoryStorage, Queue
from reliq.hooks import Run
from reliq.job import Event

pytest.importorskip("prometheus_client", reason='pip install "reliq[prometheus]"')

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from reliq.contrib.prometheus import metrics

#: What PromQL says between names.
WORDS = {"sum", "max", "count", "rate", "by", "or", "vector", "histogram_quantile", "label_values"}
VARIABLES = {"$queue", "$__rate_interval", "${datasource}"}


@pytest.fixture(scope="module")
def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((files("reliq.contrib") / "grafana.json").read_text("utf-8"))
    return found


def queries(dashboard: dict[str, Any]) -> list[str]:
    return [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]] + [
        variable["definition"] for variable in dashboard["templating"]["list"] if "definition" in variable
    ]


def exported() -> dict[str, set[str]]:
    """Every sample's name and its labels, of a registry on which everything has happened."""
    registry = CollectorRegistry()
    found = metrics(registry)
    with closing(MemoryStorage()) as storage:
        found.show(Queue("q", storage))
        found._ran("q", [Run("completed", 0.1)])
        for name in ("stalled", "failed", "error"):
            found._happened(Event(name, "q"))
        found._enqueued(Event("enqueued", "q"))
        text = generate_latest(registry).decode()
    labels: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels.setdefault(sample.name, set()).update(sample.labels)
    return labels


def unknown(query: str, labels: dict[str, set[str]]) -> list[str]:
    """Names in a query that nothing exports: metrics, and labels of the metrics that it asks for."""
    bare = re.sub(r'"[^"]*"', '""', query)
    names = set(re.findall(r"\$?[a-zA-Z_]\w*", bare)) - WORDS - VARIABLES
    asked = {name for name in names if name.startswith("reliq_")}
    known = set().union(*(labels.get(name, set()) for name in asked))
    return sorted((asked - labels.keys()) | (names - asked - known))


def test_every_query_asks_for_what_is_exported(dashboard: dict[str, Any]) -> None:
    labels = exported()
    found = queries(dashboard)
    assert len(found) >= 15
    assert {query: wrong for query in found if (wrong := unknown(query, labels))} == {}


def test_everything_that_is_exported_is_shown(dashboard: dict[str, Any]) -> None:
    text = " ".join(queries(dashboard))
    families = {re.sub(r"_(total|bucket|count|sum)$", "", name) for name in exported()}
    assert {family for family in families if family not in text} == set()


@pytest.mark.parametrize(
    "wrong", ["rate(reliq_ran_total[5m])", 'reliq_runs_total{state="x"}', "sum by (job_id) (reliq_jobs)"]
)
def test_a_wrong_query_is_found(wrong: str) -> None:
    assert unknown(wrong.replace("[5m]", "[$__rate_interval]"), exported())


def test_states_and_outcomes_of_the_queries_exist(dashboard: dict[str, Any]) -> None:
    from reliq import State

    states = set(re.findall(r'state!?="([^"]*)"', " ".join(queries(dashboard))))
    assert states
    assert states <= {state.value for state in State}


def test_panels_have_ids_titles_and_places_of_their_own(dashboard: dict[str, Any]) -> None:
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len({panel["title"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
