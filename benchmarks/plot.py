"""Draws what was measured side by side: a panel for each figure, a bar for each peer."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import Any

from .harness import Figure

_COLUMNS = 3
_RELIQ, _OTHERS = "tab:blue", "tab:gray"


def is_possible() -> bool:
    """Whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def draw(path: Path, found: dict[str, list[Figure]]) -> None:
    """One picture of all figures that at least one peer has as well; the ending of its name says which kind."""
    panels = {label: figures for label, figures in _panels(found).items() if len(figures) > 1 and "reliq" in figures}
    if not panels:
        raise SystemExit("there is nothing to draw: no peer was measured")
    matplotlib: Any = importlib.import_module("matplotlib")
    matplotlib.use("Agg")
    pyplot: Any = importlib.import_module("matplotlib.pyplot")
    rows = -(-len(panels) // _COLUMNS)
    picture, all_axes = pyplot.subplots(
        rows, _COLUMNS, figsize=(5 * _COLUMNS, 3 * rows), squeeze=False, layout="constrained"
    )
    for axes in all_axes.flat[len(panels) :]:
        axes.set_visible(False)
    for axes, (label, figures) in zip(all_axes.flat, panels.items(), strict=False):
        names = list(figures)[::-1]
        medians = [figures[name].median for name in names]
        spread = [
            [figures[name].median - min(figures[name].values) for name in names],
            [max(figures[name].values) - figures[name].median for name in names],
        ]
        colors = [_RELIQ if name == "reliq" else _OTHERS for name in names]
        axes.barh(names, medians, xerr=spread, color=colors)
        axes.set_title(f"{label} ({figures[names[0]].unit})", fontsize=10)
        if min(medians) > 0 and max(medians) > 30 * min(medians):
            axes.set_xscale("log")
    picture.savefig(path)


def _panels(found: dict[str, list[Figure]]) -> dict[str, dict[str, Figure]]:
    """Figures that are named ``label: peer`` by label, then by peer."""
    panels: dict[str, dict[str, Figure]] = {}
    for figure in (figure for figures in found.values() for figure in figures if figure.values):
        label, colon, peer = figure.name.rpartition(": ")
        if colon and not label.startswith(" "):
            panels.setdefault(label, {})[peer] = figure
    return panels
