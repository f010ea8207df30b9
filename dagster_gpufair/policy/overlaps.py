"""Whether quotas, grants and windows are together ever more than a pool has."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from dagster_gpufair.policy.cron import NEVER
from dagster_gpufair.policy.in_force import length, starts
from dagster_gpufair.policy.models import Grant, Policy, Window
from dagster_gpufair.policy.problems import dotted

# In this time, schedules by weekday and by day of the month have met.
_LONG_ENOUGH = 35 * 86400.0
_MOST_STARTS = 500


class Overlap(NamedTuple):
    """The first moment found at which what teams are promised in a pool is more than it has.

    ``path`` is the grant or window in force that started last.
    """

    path: str
    pool: str
    gpus: int
    moment: float


class _Extra(NamedTuple):
    """A grant or a window: both are added to a team's quota while in force."""

    path: str
    given: Grant | Window

    def is_in_force(self, moment: float) -> bool:
        return moment < starts(self.given, moment)[0] + length(self.given)


def overlaps(policy: Policy, now: float) -> Iterator[Overlap]:
    """The overlap of each pool that has one, from ``now`` on.

    Projects need no look of their own: a project's grant is added to its team's quota too.
    """
    for pool in policy.pools:
        overlap = first_overlap(policy, pool, now)
        if overlap:
            yield overlap


def first_overlap(policy: Policy, pool: str, now: float, besides: int = 0) -> Overlap | None:
    """The overlap of one pool, if it has one; with ``besides``, where so many of its GPUs are taken."""
    capacity = policy.pools[pool].capacity - besides
    quotas = sum(team.quota.get(pool, 0) for team in policy.teams.values())
    extras = list(_extras(policy, pool))
    once = [extra for extra in extras if extra.given.start is not None]
    repeated = [extra for extra in extras if extra.given.start is None]
    begins = [now, *sorted({starts(extra.given, now)[1] for extra in once} - {NEVER})]
    for begin, end in zip(begins, [*begins[1:], NEVER], strict=True):
        # Up to `end` nothing else that is once begins.
        candidates = [*(extra for extra in once if extra.is_in_force(begin)), *repeated]
        if quotas + _gpus(candidates) <= capacity:
            continue
        moments = _moments(repeated, begin, min(end, begin + _LONG_ENOUGH))
        for moment in islice(moments, _MOST_STARTS):
            in_force = [extra for extra in candidates if extra.is_in_force(moment)]
            together = quotas + _gpus(in_force)
            if together > capacity:
                newest = max(in_force, key=lambda extra: starts(extra.given, moment)[0])
                return Overlap(newest.path, pool, together, moment)
    return None


def _extras(policy: Policy, pool: str) -> Iterator[_Extra]:
    for index, grant in enumerate(policy.grants):
        if grant.pool == pool:
            yield _Extra(dotted("grants", index), grant)
    for index, window in enumerate(policy.windows):
        if window.pool == pool:
            yield _Extra(dotted("windows", index), window)


def _gpus(extras: list[_Extra]) -> int:
    return sum(extra.given.gpus for extra in extras)


def _moments(repeated: list[_Extra], begin: float, end: float) -> Iterator[float]:
    """``begin`` and every start up to ``end``: between those, nothing is added."""
    moment = begin
    while moment < end:
        yield moment
        moment = min((starts(extra.given, moment)[1] for extra in repeated), default=NEVER)
