"""Claims on a quota: what a large request needs of it is kept from worse requests of its account.

An account's quota is claimed by the best of its requests that the quota could hold, but for smaller runs of
the account, once it has waited ``reserve_after``. It claims in one pool, that in which it would start
earliest; and nothing, if a ceiling keeps it from starting as well, or no ready nodes ever have its shape.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from dagster_gpufair.scheduling.accounts.asker import Asker
from dagster_gpufair.scheduling.accounts.holding import Holding
from dagster_gpufair.scheduling.calendar.beginnings import Beginning, Rank
from dagster_gpufair.scheduling.calendar.calendar import Calendar, rank_of
from dagster_gpufair.scheduling.model import Lease, Reservation
from dagster_gpufair.scheduling.present import Present
from dagster_gpufair.scheduling.stoppable import Stoppable


class Waiter(Protocol):
    """Requests that ask alike: what they want, in order of liking, and the first of them."""

    @property
    def wanted(self) -> Sequence[tuple[Holding, int]]: ...

    def claimants(self, choice: tuple[Holding, int]) -> Iterable[Asker]:
        """The first of each group of them, as they ask for a choice; none if they may not claim."""


class Claims:
    """The claims on the quotas of all accounts, as use changes."""

    def __init__(
        self,
        present: Present,
        stoppable: Stoppable,
        calendar: Calendar,
        waiters: Iterable[Waiter],
    ) -> None:
        self._present, self._stoppable, self._calendar = present, stoppable, calendar
        self._waiters: dict[Holding, dict[int, list[Waiter]]] = {}
        for waiter in waiters:
            for holding, gpus in waiter.wanted:
                if gpus <= holding.quota and any(waiter.claimants((holding, gpus))):
                    self._waiters.setdefault(holding, {}).setdefault(gpus, []).append(waiter)
        self._found: dict[Holding, tuple[int, Beginning | None]] = {}
        calendar.claim_of = self.of

    def __bool__(self) -> bool:
        return bool(self._waiters)

    def of(self, asker: Asker) -> Beginning | None:
        """What is claimed of the quota of an asker's account."""
        return self._of(asker.holding)

    def all(self) -> list[Reservation]:
        """All of them, by account and pool."""
        claims = [claim.reservation for holding in self._waiters if (claim := self._of(holding))]
        return sorted(
            claims, key=lambda each: (each.request.team, each.request.project or "", each.pool)
        )

    def _of(self, holding: Holding) -> Beginning | None:
        if holding not in self._waiters:
            return None
        # Whoever claims may also have started in another pool.
        known, claim = self._found.get(holding, (-1, None))
        if known != self._present.running.changes:
            claim = self._best(holding)
            self._found[holding] = (self._present.running.changes, claim)
        return claim

    def _best(self, holding: Holding) -> Beginning | None:
        found = sorted(self._candidates(holding), key=lambda each: each[0])
        for rank, asker, waiter in found:
            if not self._could_start(asker):
                continue
            at = self._opening(asker)
            if not self._is_earlier_elsewhere(asker, waiter, at):
                return self._claim(rank, asker, at)
        return None

    def _candidates(self, holding: Holding) -> Iterator[tuple[Rank, Asker, Waiter]]:
        for gpus, waiters in self._waiters[holding].items():
            if self._waits_for_smaller(holding, gpus):
                for waiter in waiters:
                    for asker in waiter.claimants((holding, gpus)):
                        yield rank_of(self._present, asker), asker, waiter

    def _waits_for_smaller(self, holding: Holding, gpus: int) -> bool:
        """Whether the quota could hold so many but for smaller runs of the account."""
        leases = self._present.running.of_account(holding)
        smaller = sum(lease.gpus for lease in leases if lease.gpus < gpus)
        return 0 < holding.taken + gpus - holding.quota <= smaller

    def _could_start(self, asker: Asker) -> bool:
        """Whether nothing keeps it from starting but its account's quota and space."""
        if self._present.ceilings.exceeded(asker.request, asker.pool, asker.gpus) is not None:
            return False
        return self._calendar.in_the_end.placement(asker, for_its_quota=True) is not None

    def _is_earlier_elsewhere(self, asker: Asker, waiter: Waiter, at: float | None) -> bool:
        """Whether the same request could start earlier in another pool, or as early in one it likes more."""
        mine = math.inf if at is None else at
        is_liked_more = True
        for holding, gpus in waiter.wanted:
            if (holding, gpus) == (asker.holding, asker.gpus):
                is_liked_more = False
                continue
            if gpus > holding.quota or not self._waits_for_smaller(holding, gpus):
                continue
            other = asker._replace(holding=holding, gpus=gpus)
            if not self._could_start(other):
                continue
            its = self._opening(other)
            theirs = math.inf if its is None else its
            if theirs < mine or (theirs == mine and is_liked_more):
                return True
        return False

    def _opening(self, asker: Asker) -> float | None:
        """When the quota could hold it by what is known to end."""
        left = asker.holding.quota - asker.holding.taken - asker.gpus
        for at, lease in self._ends(asker):
            left += lease.gpus
            if left >= 0:
                return at
        return None

    def _ends(self, asker: Asker) -> list[tuple[float, Lease]]:
        """What of its account is known to end, earliest first."""
        ends = [
            (max(end, self._present.now), lease)
            for lease in self._present.running.of_account(asker.holding)
            if (end := self._stoppable.gone_by(asker, lease)) is not None
        ]
        return sorted(ends, key=lambda each: (each[0], each[1].id))

    def _claim(self, rank: Rank, asker: Asker, at: float | None) -> Beginning:
        then = self._calendar.as_now(asker.pool)
        for end, lease in self._ends(asker):
            if at is not None and end <= at:
                then.end(lease)
        then.block(asker, {})
        return Beginning(at, then, asker, None, rank, of_quota=True)
