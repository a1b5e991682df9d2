"""The contract of a storage as an importable suite.

    from reliq.testing import StorageContract

    class TestMine(StorageContract):
        def make_storage(self, tmp_path):
            return MyStorage(tmp_path)

Each test names the line of the specification that it holds the storage to (``test_i08_...`` is I8).
"""

from __future__ import annotations

from .bells import BellContract
from .cancel import CancelContract
from .claim import ClaimContract
from .enqueue import EnqueueContract
from .expiry import ExpiryContract
from .groups import GroupContract
from .life import LifeContract
from .limits import LimitContract
from .links import LinkContract
from .persistent import PersistentContract
from .reading import ReadingContract
from .recovery import RecoveryContract
from .schedules import ScheduleContract
from .settle import SettleContract
from .table import TableContract
from .waiting import WaitContract

__all__ = ["StorageContract"]


class StorageContract(
    TableContract,
    EnqueueContract,
    ClaimContract,
    SettleContract,
    RecoveryContract,
    CancelContract,
    WaitContract,
    ExpiryContract,
    ReadingContract,
    BellContract,
    GroupContract,
    LimitContract,
    LinkContract,
    PersistentContract,
    ScheduleContract,
    LifeContract,
):
    """Everything that a storage guarantees. Subclass it in a test module and override ``make_storage``.

    Override ``open_again`` too where several objects, or processes, can work on the same data.
    """
