"""Cron schedules: five fields, read in UTC. Times are seconds since the epoch."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from functools import lru_cache

from cronsim import CronSim, CronSimError

from dagster_gpufair.policy.problems import shown

NEVER = float("inf")

_FIELDS = {
    "minute": "0-59",
    "hour": "0-23",
    "day": "1-31",
    "month": "1-12",
    "weekday": "0-7 (0 and 7 are Sunday)",
}
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def cron_trouble(cron: str) -> str | None:
    """What is wrong with a cron expression, and how to fix it; None if it can be followed."""
    fields = cron.split()
    if len(fields) != len(_FIELDS):
        names = ", ".join(_FIELDS)
        form = f"a cron schedule has five fields: {names}, such as '0 20 * * 1-5'"
        return f"{shown(cron)}: {form}"
    for index, (name, takes) in enumerate(_FIELDS.items()):
        alone = ["*"] * len(_FIELDS)
        alone[index] = fields[index]
        if not _can_be_read(" ".join(alone)):
            how = f"write {takes}, alone, as a list (1,3), a range (1-5) or a step (*/2)"
            return f"{shown(fields[index])} is not a valid {name}; {how}"
    if not _comes_up(cron):
        return f"{shown(cron)} never comes: there is no such day"
    return None


def _can_be_read(cron: str) -> bool:
    try:
        CronSim(cron, _EPOCH)
    except (CronSimError, ValueError):
        # ValueError: Python refuses numbers of thousands of digits.
        return False
    return True


def _comes_up(cron: str) -> bool:
    """Whether a readable schedule has any moments; 31 February has none."""
    try:
        return next(CronSim(cron, _EPOCH), None) is not None
    except CronSimError:
        return False


class Schedule:
    """The moments that a cron expression names.

    It remembers between which two it was asked last, since passes ask for the same again and again.
    """

    def __init__(self, cron: str) -> None:
        self._cron = cron
        self._between = (NEVER, -NEVER)
        self._listed: tuple[float, float, list[float]] = (NEVER, -NEVER, [])

    def around(self, now: float) -> tuple[float, float]:
        """The latest moment up to ``now`` and the first one after it; infinite if there is none."""
        last, following = self._between
        if not last <= now < following:
            # Schedules know full minutes only: what is around this minute is around `now`.
            minute = now // 60
            last = self._first(minute + 1, back=True)
            following = self._first(minute, back=False)
            self._between = last, following
        return last, following

    def times(self, after: float, before: float) -> Sequence[float]:
        """All its moments after one and up to another, earliest first."""
        since, until, listed = self._listed
        if not (since <= after and before <= until):
            # A day more: the next pass asks for almost the same.
            since, until = after, before + 86400.0
            listed = []
            moment = _EPOCH + timedelta(minutes=since // 60)
            for at in CronSim(self._cron, moment):
                if at.timestamp() > until:
                    break
                listed.append(at.timestamp())
            self._listed = since, until, listed
        return listed[bisect_right(listed, after) : bisect_right(listed, before)]

    def _first(self, minute: float, back: bool) -> float:
        """The first one before or after a minute since the epoch, itself not counted."""
        try:
            moment = _EPOCH + timedelta(minutes=minute)
            return next(CronSim(self._cron, moment, reverse=back)).timestamp()
        except (StopIteration, OverflowError):
            return -NEVER if back else NEVER


@lru_cache(maxsize=1024)
def schedule(cron: str) -> Schedule:
    """The schedule of a cron expression that `cron_trouble` found nothing wrong with."""
    return Schedule(cron)
