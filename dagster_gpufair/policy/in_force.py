"""What holds for a time only: the grants and windows in force at a moment, and the windows to come.

Times are seconds since the epoch, GPU amounts thousandths.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from dagster_gpufair.policy.cron import NEVER, schedule
from dagster_gpufair.policy.models import Grant, Policy, Window


class Upcoming(NamedTuple):
    """A window that is still to start."""

    team: str
    pool: str
    gpus: int
    start: float
    until: float


def in_force(extra: Grant | Window, at: float) -> bool:
    """Whether it is in force at a moment."""
    start, _ = starts(extra, at)
    return at < start + length(extra)


def spells(extra: Grant | Window, after: float, before: float) -> Iterator[tuple[float, float]]:
    """When it is in force, from and until, of all that ends after one moment and begins up to another.

    One that begins again before it was over is one spell.
    """
    lasts = length(extra)
    current, _ = starts(extra, after)
    if isinstance(extra, Window) and extra.cron is not None:
        begins = [*schedule(extra.cron).times(after, before)]
    else:
        assert extra.start is not None
        begins = [at for at in (extra.start.timestamp(),) if after < at <= before]
    begun, over = current, current + lasts
    for at in begins:
        if at > over:
            if over > after:
                yield begun, over
            begun = at
        over = at + lasts
    if over > after:
        yield begun, over


def granted(policy: Policy, now: float) -> dict[tuple[str, str | None, str], int]:
    """Extra quota by team, project and pool; what the team as a whole was granted is under None."""
    sums: defaultdict[tuple[str, str | None, str], int] = defaultdict(int)
    for grant in policy.grants:
        if grant.start.timestamp() <= now < grant.until.timestamp():
            sums[grant.team, grant.project, grant.pool] += grant.gpus
    return dict(sums)


def held(policy: Policy, now: float) -> dict[tuple[str, str], int]:
    """GPUs that windows hold, by team and pool.

    A window that starts again before it was over goes on; its GPUs are not held twice.
    """
    sums: defaultdict[tuple[str, str], int] = defaultdict(int)
    for window in policy.windows:
        start, _ = starts(window, now)
        if now < start + length(window):
            sums[window.team, window.pool] += window.gpus
    return dict(sums)


def upcoming(policy: Policy, now: float) -> list[Upcoming]:
    """Of every window its next start after ``now``, if it has one; earliest first."""
    found = []
    for window in policy.windows:
        _, start = starts(window, now)
        if start < NEVER:
            until = start + length(window)
            found.append(Upcoming(window.team, window.pool, window.gpus, start, until))
    return sorted(found, key=lambda each: (each.start, each.team, each.pool))


def changes(policy: Policy, now: float) -> list[float]:
    """When a grant or a window next starts or ends after ``now``, each of them; earliest first."""
    found: set[float] = set()
    extras: list[Grant | Window] = [*policy.grants, *policy.windows]
    for extra in extras:
        latest, following = starts(extra, now)
        found.update((latest + length(extra), following, following + length(extra)))
    return sorted(at for at in found if now < at < NEVER)


def starts(extra: Grant | Window, now: float) -> tuple[float, float]:
    """Its latest start up to ``now`` and its next one; infinite if there is none."""
    if isinstance(extra, Window) and extra.cron is not None:
        return schedule(extra.cron).around(now)
    assert extra.start is not None, "what has no cron schedule has a start"
    start = extra.start.timestamp()
    return (start, NEVER) if start <= now else (-NEVER, start)


def length(extra: Grant | Window) -> float:
    """How long it lasts each time, in seconds."""
    if isinstance(extra, Window) and extra.duration is not None:
        return extra.duration.total_seconds()
    assert extra.start is not None and extra.until is not None, (
        "what is once has a start and an end"
    )
    return (extra.until - extra.start).total_seconds()
