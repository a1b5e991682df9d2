"""How many jobs one claim should take. Pure."""

from __future__ import annotations

#: How long one batch should take. It bounds what a batch can add to anybody's latency.
TARGET_S = 0.010
#: A job that takes this long is slow, whatever else the process does.
SLOW_S = 0.100
#: Beyond this a larger batch gains nothing.
MAX_SIZE = 256


class BatchSize:
    """The size of a queue's next batch, learned by all runners of a pool together.

    It starts at one, doubles while full batches end within the target and halves when one does
    not: no faster, because a single wait for the GIL makes a fast batch look slow. A handler that
    is slow beyond doubt brings it to one at once. Updates race; a lost one only costs a round.
    """

    __slots__ = ("_cap", "size")

    def __init__(self, cap: int | None = None) -> None:
        self._cap = MAX_SIZE if cap is None else min(cap, MAX_SIZE)
        self.size = 1

    def learn(self, ran: int, elapsed: float) -> None:
        """A batch ran ``ran`` jobs in ``elapsed`` seconds."""
        size = self.size
        if ran == 0:
            return  # all of it was given back, which says nothing
        if elapsed <= TARGET_S:
            if ran >= size:
                self.size = min(self._cap, size * 2)
        elif elapsed > ran * SLOW_S:
            self.size = 1
        else:
            self.size = max(1, size // 2, min(size, int(ran * TARGET_S / elapsed)))
