"""How long does ``import reliq`` take, and does it load what may never be needed?"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys

from .harness import Bench, Figure

#: Milliseconds.
TARGET = 80.0
_LATER = ("redis", "watchdog")
_SCRIPT = f"""
import json, sys, time
began = time.perf_counter()
import reliq
took = 1000 * (time.perf_counter() - began)
later = [name for name in sys.modules if name.partition(".")[0] in {_LATER!r}]
print(json.dumps([took, len(later)]))
"""


def measure(bench: Bench) -> list[Figure]:
    """In fresh processes; the files are in the system's cache."""
    found = bench.repeat("import", _import)
    return [
        Figure("import reliq", "ms", found["took"], TARGET),
        Figure(f"  modules of {' and '.join(_LATER)} loaded by it", "", found["later"], 0.0),
    ]


def _import() -> dict[str, float]:
    """The middle of five."""
    answers = [
        json.loads(subprocess.run([sys.executable, "-c", _SCRIPT], check=True, capture_output=True, text=True).stdout)
        for _ in range(5)
    ]
    return {"took": statistics.median(took for took, _ in answers), "later": max(later for _, later in answers)}
