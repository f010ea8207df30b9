"""Leases that said how long they take at most: told before the end, and stopped at it."""

from __future__ import annotations

from collections.abc import Iterable

from dagster_gpufair.ledger.leases import LeaseRecord

NOTICE = 300.0
NOTICE_PART = 0.1
"""Notice comes this many seconds before the end, or when this part of a short run's time is left."""


def due(leases: Iterable[LeaseRecord], now: float) -> tuple[list[LeaseRecord], list[LeaseRecord]]:
    """(to be told that the end is near, to be stopped) now.

    The time counts from when the work began: what has not begun has all of it before it.
    """
    near, past = [], []
    for lease in leases:
        ends, most = lease.bound_ends, lease.max_duration
        if ends is None or most is None or lease.state not in ("running", "notice"):
            continue
        if now >= ends:
            past.append(lease)
        elif lease.warned_at is None and now >= ends - min(NOTICE, NOTICE_PART * most):
            near.append(lease)
    return near, past
