"""What each account has borrowed lately, brought up to date now and then, exactly to the second."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from sqlalchemy.orm import Session

from dagster_gpufair.ledger import leases, usage
from dagster_gpufair.ledger.leases import LeaseRecord
from dagster_gpufair.policy.models import Policy
from dagster_gpufair.scheduling.accounts.accounts import account_of
from dagster_gpufair.scheduling.accounts.coverage import borrowed_part
from dagster_gpufair.scheduling.model import Account, Lease

ACCRUE_EVERY = 10.0
"""Seconds between two additions."""


class BorrowedUse:
    """``used`` is in GPU-hours that fade, by account and pool, as of the last addition."""

    def __init__(self) -> None:
        self.used: Mapping[tuple[Account, str], float] = {}
        self._until: float | None = None
        self._is_known = False

    def resume(self, until: float | None) -> None:
        """Go on from where the last writer was; None if there was none."""
        self._until, self._is_known = until, False

    def is_due(self, now: float) -> bool:
        """Whether there is anything to add, or to read."""
        return (
            not self._is_known or self._until is None or not 0 <= now - self._until < ACCRUE_EVERY
        )

    def accrue(self, session: Session, policy: Policy, now: float) -> float:
        """Add what was borrowed since the last time, if it is time to; of another writer's, read it.

        What was held is read from the ledger, with its ends: a lease whose end was noticed late counts up
        to its end only.

        Returns:
            Up to when all has been added, once this is committed.
        """
        half_life = policy.fair_share.half_life.total_seconds()
        until = now if self._until is None or now < self._until else self._until
        if now - until >= ACCRUE_EVERY:
            held = leases.held_between(session, until, now)
            for begins, ends in _stretches(held, until, now):
                during = [lease.to_lease() for lease in held if _is_held(lease, begins)]
                usage.accrue(session, _borrowed(policy, during, begins), begins, ends, half_life)
            until = now
        self.used = usage.used(session, now, half_life)
        return until

    def added(self, until: float) -> None:
        """What was added is in the ledger, up to then."""
        self._until, self._is_known = until, True


def _stretches(
    held: Sequence[LeaseRecord], since: float, until: float
) -> Sequence[tuple[float, float]]:
    """The time between two moments, cut wherever a lease begins or ends."""
    moments = {lease.started_at for lease in held} | {
        lease.released_at for lease in held if lease.released_at is not None
    }
    cuts = [since, *sorted(at for at in moments if since < at < until), until]
    return list(pairwise(cuts))


def _is_held(lease: LeaseRecord, at: float) -> bool:
    return lease.started_at <= at and (lease.released_at is None or at < lease.released_at)


def _borrowed(policy: Policy, held: Sequence[Lease], now: float) -> dict[tuple[Account, str], int]:
    """GPUs in the borrowed part of each account, in thousandths."""
    borrowed = borrowed_part(policy, held, now)
    amounts: dict[tuple[Account, str], int] = {}
    for lease in held:
        if lease.id in borrowed:
            key = (account_of(policy, lease, lease.pool), lease.pool)
            amounts[key] = amounts.get(key, 0) + lease.gpus
    return amounts
