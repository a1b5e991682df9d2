"""``python -m benchmarks.worker URL QUEUE``: a pool whose handler returns a number of the payload."""

from __future__ import annotations

import sys

from reliq import Job, Queue, WorkerPool


def main() -> None:
    """Run until SIGTERM."""
    queue = Queue(sys.argv[2], sys.argv[1])

    @queue.handler
    def handle(job: Job) -> int:
        return int(job.payload["n"])

    WorkerPool(queue, threads=8).run_forever()


if __name__ == "__main__":
    main()
