"""``python -m benchmarks``: all questions, one table. Run it from the root of the repository."""

from __future__ import annotations

import argparse
import json
import os
import time
from dataclasses import asdict
from pathlib import Path

from tests.servers import RedisServer

from . import (
    both,
    call,
    drain,
    enqueue,
    files,
    groups,
    growth,
    handlers,
    imports,
    limits,
    memory,
    overhead,
    plot,
    server_cost,
    server_memory,
)
from .contest import PEERS
from .harness import Bench, Figure, describe

SCRIPTS = {
    "limits": limits,
    "imports": imports,
    "server_cost": server_cost,
    "drain": drain,
    "groups": groups,
    "call": call,
    "server_memory": server_memory,
    "enqueue": enqueue,
    "both": both,
    "handlers": handlers,
    "overhead": overhead,
    "growth": growth,
    "memory": memory,
    "files": files,
}
#: Too long for the quick run, unless asked for by name.
LONG = {"files", "overhead"}


def main(arguments: list[str] | None = None) -> int:
    """Measure and print; a target that was missed is said, and is no failure."""
    options = _parse(arguments)
    chosen = options.only or [name for name in SCRIPTS if not (options.quick and name in LONG)]
    found: dict[str, list[Figure]] = {}
    began = time.monotonic()
    with RedisServer() as server:
        facts = describe(server)
        bench = Bench(server, options.runs, options.quick, options.peer)
        try:
            for name in chosen:
                found[name] = SCRIPTS[name].measure(bench)
        finally:
            bench.close()
    for peer, versions in bench.versions.items():
        facts[f"peer {peer}"] = ", ".join(f"{name} {version}" for name, version in versions.items())
    facts["load after"] = " ".join(f"{load:.2f}" for load in os.getloadavg())
    facts["runs"] = f"{options.runs}{', quick' if options.quick else ''}, {time.monotonic() - began:.0f} s in all"
    _print(facts, found)
    if options.json:
        _write(options.json, facts, found)
    if options.plot:
        plot.draw(options.plot, found)
    return 0


def _print(facts: dict[str, str], found: dict[str, list[Figure]]) -> None:
    for name, fact in facts.items():
        print(f"{name:10} {fact}")
    print(f"\n{'figure':46} {'median':>10} {'min - max':>23} unit     target")
    for script, figures in found.items():
        print(f"-- {script}: {(SCRIPTS[script].__doc__ or '').strip()}")
        for figure in figures:
            if not figure.values:
                print(f"{figure.name:46} {figure.note}")
                continue
            spread = f"{_number(min(figure.values))} - {_number(max(figure.values))}"
            line = f"{figure.name:46} {_number(figure.median):>10} {spread:>23} {figure.unit:8} {_target(figure)}"
            print(line.rstrip())


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1_000 else f"{value:.3g}"


def _target(figure: Figure) -> str:
    if figure.target is None:
        return ""
    return f"{figure.goal} {_number(figure.target)}: {'met' if figure.is_met else 'MISSED'}"


def _write(path: Path, facts: dict[str, str], found: dict[str, list[Figure]]) -> None:
    figures = [
        {"script": script, **asdict(figure), "median": figure.median if figure.values else None, "met": figure.is_met}
        for script, figures in found.items()
        for figure in figures
    ]
    path.write_text(json.dumps({"facts": facts, "figures": figures}, indent=1) + "\n", "utf-8")


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    names = [peer.name for peer in PEERS]
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer jobs; under a minute on an idle machine")
    parser.add_argument("--only", action="append", choices=list(SCRIPTS), metavar="NAME",
                        help=f"one of {', '.join(SCRIPTS)}; may be given several times")  # fmt: skip
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there, too")
    parser.add_argument("--plot", type=Path, metavar="FILE",
                        help="draw the peers' figures there, too: a .png or .svg; needs the extra `bench`")  # fmt: skip
    parser.add_argument("--runs", type=int, default=3, help="how often each figure is measured (default and least: 3)")
    parser.add_argument("--peer", action="append", choices=[*names, "none"], metavar="NAME",
                        help=f"beside {', '.join(names)} (default: all; quick: none)")  # fmt: skip
    options = parser.parse_args(arguments)
    if options.plot and not plot.is_possible():
        parser.error("--plot needs matplotlib: pip install -e '.[bench]'")
    if options.peer is None:
        options.peer = [] if options.quick else names
    if options.runs < 3:
        parser.error("--runs must be at least 3")
    return options


if __name__ == "__main__":
    raise SystemExit(main())
