"""Leases whose time is over: by what they said that they take at most, or by a notice."""

from __future__ import annotations

from collections.abc import Container, Iterable

from dagster_gpufair.ledger.leases import BOUND, PREEMPTION, LeaseRecord, StopCause

NOTICE = 300.0
NOTICE_PART = 0.1
"""Notice comes this many seconds before the end, or when this part of a short run's time is left."""
SAVED_EVERY = 60.0
"""Seconds between two checkpoints that are written down of a run that is not under notice."""


def due(
    leases: Iterable[LeaseRecord], may_stop: Container[str], now: float
) -> tuple[list[LeaseRecord], list[tuple[LeaseRecord, StopCause]]]:
    """(to be told that the end is near, to be stopped and why) now.

    The time counts from when the work began: what has not begun has all of it before it.

    Args:
        may_stop: the requests whose holders, under notice, say that all is saved: nobody waits longer.
    """
    near: list[LeaseRecord] = []
    past: list[tuple[LeaseRecord, StopCause]] = []
    for lease in leases:
        if lease.state not in ("running", "notice"):
            continue
        ends, most = lease.bound_ends, lease.max_duration
        if ends is not None and now >= ends:
            past.append((lease, BOUND))
        elif lease.state == "notice" and (
            now >= (lease.notice_until or now) or lease.request_id in may_stop
        ):
            past.append((lease, PREEMPTION))
        elif (
            ends is not None
            and most is not None
            and lease.warned_at is None
            and now >= ends - min(NOTICE, NOTICE_PART * most)
        ):
            near.append(lease)
    return near, past


def is_noted(saved_at: float, lease: LeaseRecord) -> bool:
    """Whether it is written down that work was saved up to then; each time only where a stop is near."""
    before = lease.checkpointed_at
    if before is None:
        return True
    return saved_at >= before + SAVED_EVERY or (
        lease.notice_until is not None and saved_at > before
    )
