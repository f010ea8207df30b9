"""What each account has borrowed of late, brought up to date now and then."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from sqlalchemy.orm import Session

from dagster_gpufair.ledger import usage
from dagster_gpufair.ledger.leases import LeaseRecord
from dagster_gpufair.policy.models import Policy
from dagster_gpufair.scheduling.accounts import account_of
from dagster_gpufair.scheduling.coverage import borrowed_part
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

    def accrue(
        self, session: Session, policy: Policy, held: Iterable[LeaseRecord], now: float
    ) -> None:
        """Add what was borrowed since the last time, if it is time to; of another writer's, read it."""
        is_due = now - (self._until or 0.0) >= ACCRUE_EVERY
        if self._is_known and not is_due:
            return
        half_life = policy.fair_share.half_life.total_seconds()
        if is_due:
            if self._until is not None:
                borrowed = _borrowed(policy, [lease.to_lease() for lease in held], now)
                usage.accrue(session, borrowed, self._until, now, half_life)
            self._until = now
        self.used, self._is_known = usage.used(session, now, half_life), True


def _borrowed(policy: Policy, held: Sequence[Lease], now: float) -> dict[tuple[Account, str], int]:
    """GPUs in the borrowed part of each account, in thousandths."""
    borrowed = borrowed_part(policy, held, now)
    amounts: dict[tuple[Account, str], int] = {}
    for lease in held:
        if lease.id in borrowed:
            key = (account_of(policy, lease, lease.pool), lease.pool)
            amounts[key] = amounts.get(key, 0) + lease.gpus
    return amounts
