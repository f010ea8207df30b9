"""Claims on a quota: what a large request needs of it is kept from worse requests of its account.

Two kinds of requests claim their account's quota:

- one that holds a reservation as guaranteed: without the quota it would lose its place;
- one that its quota could hold, but for runs of its account that are smaller, once it has waited
  ``reserve_after``.

Worse requests of the account start only if they are gone by the time that it starts, or that the quota could
hold it, leave enough of the quota, or could be stopped for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from dagster_gpufair.scheduling.groups import Ask
from dagster_gpufair.scheduling.holding import Holding
from dagster_gpufair.scheduling.horizon import Asker
from dagster_gpufair.scheduling.model import Class, Lease, Reservation

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dagster_gpufair.scheduling.snapshot import Snapshot


class Claim(NamedTuple):
    """The best request that a quota is kept for, when the quota could hold it, and what it leaves then."""

    key: tuple[float, float, str]
    asker: Asker
    at: float | None
    over: int

    @property
    def reservation(self) -> Reservation:
        asker = self.asker
        return Reservation(
            asker.request, asker.pool, asker.gpus, {}, self.at, Class.GUARANTEED, of_quota=True
        )


class Claims:
    """The claims on the quotas of all accounts, as use changes."""

    def __init__(self, snapshot: Snapshot, asks: Iterable[Ask]) -> None:
        self._snapshot = snapshot
        self._asks: dict[Holding, dict[int, list[Ask]]] = {}
        for ask in asks:
            # What is promised to a request counts as use already.
            for holding, gpus in ask.wanted if ask.has_waited and ask.kept is None else ():
                if gpus == ask.sample.sizes[-1] and gpus <= holding.quota:
                    self._asks.setdefault(holding, {}).setdefault(gpus, []).append(ask)
        self._found: dict[Holding, tuple[int, Claim | None]] = {}

    def __bool__(self) -> bool:
        return bool(self._asks)

    def bars(self, asker: Asker) -> Claim | None:
        """The claim that keeps a request from starting so now."""
        if asker.class_ is Class.URGENT:
            return None
        for claim in (self._of_reserved(asker.holding), self._of_waiting(asker.holding)):
            if (
                claim is not None
                and claim.asker.request is not asker.request
                and claim.key < _rank(self._snapshot, asker)
                and not self._may_pass(asker, claim)
            ):
                return claim
        return None

    def all(self) -> list[Claim]:
        """Those of requests that have waited, by account and pool."""
        claims = [claim for holding in self._asks if (claim := self._of_waiting(holding))]
        return sorted(
            claims, key=lambda claim: (str(claim.asker.holding.account), claim.asker.pool)
        )

    def _may_pass(self, asker: Asker, claim: Claim) -> bool:
        snapshot = self._snapshot
        if not snapshot.policy.backfill.enabled:
            return False
        if asker.gpus <= claim.over:
            return True
        if claim.at is None:
            return False
        length = asker.request.max_duration
        if length is not None and snapshot.now + length <= claim.at:
            return True
        preemption, tiers = snapshot.preemption, snapshot.policy.tiers
        mine, its = tiers[asker.request.tier], tiers[claim.asker.request.tier]
        borrows = mine.preemptible == "borrowed" and asker.class_ is not Class.GUARANTEED
        return (
            preemption.by_itself
            and mine.points < its.points
            and (mine.preemptible == "always" or borrows)
            and snapshot.now + preemption.min_runtime + preemption.grace <= claim.at
        )

    def _of_reserved(self, holding: Holding) -> Claim | None:
        """That of the guaranteed request of the account that holds the pool's reservation."""
        reserved = self._snapshot.reservations.guaranteed_in(holding)
        if reserved is None:
            return None
        asker, at = reserved
        left = holding.quota - holding.taken - asker.gpus
        if at is not None:
            left += sum(
                lease.gpus
                for lease in self._snapshot.running.of_account(holding)
                if (end := self._snapshot.preemption.gone_by(asker, lease)) is not None
                and end <= at
            )
        return Claim(_rank(self._snapshot, asker), asker, at, left)

    def _of_waiting(self, holding: Holding) -> Claim | None:
        """That of the best request of the account that has waited for smaller runs to end."""
        if holding not in self._asks:
            return None
        # Whoever claims may also have started in another pool.
        known, claim = self._found.get(holding, (-1, None))
        if known != self._snapshot.running.changes:
            claim = self._best(holding)
            self._found[holding] = (self._snapshot.running.changes, claim)
        return claim

    def _best(self, holding: Holding) -> Claim | None:
        leases = self._snapshot.running.of_account(holding)
        best: tuple[tuple[float, float, str], Asker] | None = None
        for gpus, asks in self._asks[holding].items():
            smaller = sum(lease.gpus for lease in leases if lease.gpus < gpus)
            over = holding.taken + gpus - holding.quota
            if over <= 0 or over > smaller:
                continue
            for group in (group for each in asks for group in each.groups):
                if (first := group.earliest) is not None:
                    asker = group.ask.asker((holding, gpus))._replace(request=first)
                    key = _rank(self._snapshot, asker)
                    if best is None or key < best[0]:
                        best = (key, asker)
        if best is None:
            return None
        key, asker = best
        at, left = self._opening(asker, leases)
        return Claim(key, asker, at, left)

    def _opening(self, asker: Asker, leases: list[Lease]) -> tuple[float | None, int]:
        """When the quota could hold it by what is known to end, and how much of it is left then."""
        gone_by = self._snapshot.preemption.gone_by
        ends = sorted(
            (max(end, self._snapshot.now), lease.id, lease.gpus)
            for lease in leases
            if (end := gone_by(asker, lease)) is not None
        )
        left = asker.holding.quota - asker.holding.taken - asker.gpus
        for number, (at, _, gpus) in enumerate(ends):
            left += gpus
            if left >= 0 and (number + 1 == len(ends) or ends[number + 1][0] > at):
                return at, left
        return None, 0


def _rank(snapshot: Snapshot, asker: Asker) -> tuple[float, float, str]:
    """How it ranks among all of its account: the lower comes first."""
    request = asker.request
    points = snapshot.points(request, asker.holding, snapshot.ageing(request))
    return (-points.score, request.submitted, request.id)
