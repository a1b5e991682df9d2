"""What every part of the contract shares: how its storage is made and closed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ...storage.base import Storage

#: Sleeping threads look by themselves only after this long, so that a missing wake-up shows.
LONG_FALLBACK_MS = 60_000


class ContractBase:
    """Override :meth:`make_storage`, and :meth:`open_again` where the data outlives one object."""

    def make_storage(self, tmp_path: Path) -> Storage:
        """A new storage with nothing in it. The suite closes it."""
        raise NotImplementedError

    def open_again(self, storage: Storage, tmp_path: Path) -> Storage | None:
        """A second object on the data of ``storage``; None where there can be only one."""
        return None

    @pytest.fixture
    def storage(self, tmp_path: Path) -> Iterator[Storage]:
        """The storage under test."""
        storage = self.make_storage(tmp_path)
        storage.fallback_ms = LONG_FALLBACK_MS
        yield storage
        storage.close()

    @pytest.fixture
    def peer(self, storage: Storage, tmp_path: Path) -> Iterator[Storage]:
        """The same data as another process would see it; ``storage`` itself where it cannot be shared."""
        peer = self.open_again(storage, tmp_path)
        if peer is None:
            yield storage
            return
        peer.fallback_ms = LONG_FALLBACK_MS
        yield peer
        peer.close()
