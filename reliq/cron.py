"""Cron expressions, by the library cronsim (the extra ``cron``). Loaded when a schedule first needs it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo

from cronsim import CronSim

from .errors import InvalidJobError

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)


def check(expression: str) -> None:
    """Raise InvalidJobError unless ``expression`` is one of five fields that can be read."""
    what = "cron must have the five fields minute, hour, day, month and weekday"
    # cronsim also takes a sixth, for seconds, but then does not mend the hours of daylight saving.
    if len(expression.split()) != 5:
        raise InvalidJobError(f"{what} (for seconds there is every=), got {expression!r}")
    try:
        CronSim(expression, _EPOCH)
    except Exception as error:  # its own error, and a few that it lets through on odd input
        raise InvalidJobError(f"{what}, got {expression!r}: {error}") from error


def ticks_after(expression: str, zone: tzinfo, after_ms: int) -> Iterator[int]:
    """The times of ``expression`` in ``zone`` beyond ``after_ms``, rising. They end where none is within 50 years.

    Where the clock is put forward, a time that does not exist becomes the first one that does; where it
    is put back, a time that comes twice is taken the first time. That holds for expressions that name their minutes
    and hours; those whose minutes or hours begin with ``*`` follow real time, as Debian's cron does.
    """
    for local in CronSim(expression, (_EPOCH + after_ms * _MS).astimezone(zone)):
        # Named times come by the wall clock, which stands or goes back where the offset changes: two that
        # do not exist become the same one, and within a doubled hour the next one may be past already.
        tick_ms = (local.astimezone(UTC) - _EPOCH) // _MS
        if tick_ms > after_ms:
            after_ms = tick_ms
            yield tick_ms
