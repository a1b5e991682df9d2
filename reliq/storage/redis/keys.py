"""Every key name, in one place. All keys of a queue carry its hash tag and so live on one cluster slot.

Under ``{prefix:queue}``: ``:jobs`` HASH id -> record, ``:messages`` HASH id -> envelope, ``:results`` HASH id ->
bytes, ``:errors`` HASH id -> history, ``:waiters`` HASH id -> reply tokens, ``:gone`` HASH id -> tombstones
(``:gone:order`` LIST, oldest first), ``:pending`` and ``:pending:1..9`` LIST of ``position:id``, ``:blocked`` ZSET
id -> sequence of queued jobs behind the head of their group, ``:waiting`` ZSET id -> sequence, ``:scheduled`` ZSET
id -> due, ``:expiry`` ZSET id -> when something of a finished job goes, ``:dead`` ZSET id -> failed at,
``:workers`` ZSET worker -> alive until, ``:runners`` HASH worker -> ``runners:ttl``, ``:processing:<worker>`` ZSET
id -> lease deadline, ``:wake`` and ``:due-wake`` LIST doorbells, ``:reply:<token>`` LIST, ``:stop:<random>`` LIST,
``:meta`` HASH counters and settings, ``:events`` channel.

Of jobs with more to them than a record: ``:side`` HASH id -> map, ``:progress`` HASH id -> bytes,
``:group:<group>`` ZSET id -> sequence of the group's unfinished jobs, ``:dependents:<id>`` ZSET nonce and id ->
sequence of those that wait for a job, ``:pins`` HASH id -> how many those are, ``:open`` HASH id -> how many it
waits for, ``:cascades`` LIST and ``:cascade:<number>`` ZSET of those that have yet to learn of an end. Schedules:
``:schedules`` HASH name -> spec, ``:ticks`` ZSET name -> next tick. ``:deleted`` LIST and ``:deleted:<number>`` ZSET:
leases of a deleted queue's jobs that have yet to be carried out.
"""

from __future__ import annotations

import re

from ...errors import InvalidJobError

_PREFIX = re.compile(r"[A-Za-z0-9._:-]{1,64}")


def check_prefix(prefix: str) -> str:
    """1-64 characters that cannot end a hash tag; raises InvalidJobError."""
    if not isinstance(prefix, str) or not _PREFIX.fullmatch(prefix):
        raise InvalidJobError(f"prefix must be 1-64 characters of A-Z a-z 0-9 . _ : - , got {prefix!a:.80}")
    return prefix


def queue_tag(prefix: str, queue: str) -> str:
    """The stem of all keys of one queue, a hash tag as a whole."""
    return f"{{{prefix}:{queue}}}"


def registry_key(prefix: str) -> str:
    """SET of the names of all queues."""
    return f"{prefix}:queues"
