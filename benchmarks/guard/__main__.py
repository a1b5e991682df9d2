"""``python -m benchmarks.guard``: measure the ratios and store them as the new baseline. On an idle machine, please."""

from __future__ import annotations

import json

from tests.servers import RedisServer

from ..harness import Bench, describe
from .ratios import BASELINE, RATIOS, measure

RUNS = 15


def main() -> None:
    """Write the file; say what is in it."""
    with RedisServer() as server:
        bench = Bench(server, RUNS, quick=True)
        try:
            ratios = {name: round(measure(bench, name, RUNS), 4) for name in RATIOS}
            facts = describe(server)
        finally:
            bench.close()
    BASELINE.write_text(json.dumps({"ratios": ratios, "facts": facts}, indent=1) + "\n", "utf-8")
    print(BASELINE.read_text("utf-8"), end="")


if __name__ == "__main__":
    main()
