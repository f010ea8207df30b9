"""Claims on a quota: a large request whose quota is taken up by smaller work of its own account.

Its account's quota could hold it, but for runs that are smaller. Once it has waited ``reserve_after``, the
quota is kept for it: worse requests of the account start only if they are gone by the time the quota could
hold it, leave enough of the quota, or could be stopped for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from dagster_gpufair.scheduling.accounts import Holding
from dagster_gpufair.scheduling.groups import Ask, Group
from dagster_gpufair.scheduling.horizon import Asker
from dagster_gpufair.scheduling.model import Class, Lease, Request, Reservation

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
        self._asks: dict[Holding, list[tuple[Ask, int]]] = {}
        for ask in asks:
            for holding, gpus in ask.wanted if ask.has_waited else ():
                if gpus == ask.sample.sizes[-1] and gpus <= holding.quota:
                    self._asks.setdefault(holding, []).append((ask, gpus))
        self._found: dict[Holding, tuple[int, Claim | None]] = {}

    def __bool__(self) -> bool:
        return bool(self._asks)

    def bars(self, asker: Asker, group: Group) -> Claim | None:
        """The claim that keeps the first of a group from starting so now."""
        if asker.class_ is Class.URGENT or asker.holding not in self._asks:
            return None
        claim = self._claim(asker.holding)
        if claim is None or claim.asker.request is asker.request:
            return None
        if _rank(self._snapshot, group, asker.holding) < claim.key:
            return None
        return None if self._may_pass(asker, claim) else claim

    def all(self) -> list[Claim]:
        """Those that hold now, by account and pool."""
        claims = [claim for holding in self._asks if (claim := self._claim(holding))]
        return sorted(
            claims, key=lambda claim: (str(claim.asker.holding.account), claim.asker.pool)
        )

    def _may_pass(self, asker: Asker, claim: Claim) -> bool:
        snapshot = self._snapshot
        if not snapshot.policy.backfill.enabled or claim.at is None:
            return False
        if asker.gpus <= claim.over:
            return True
        length = asker.request.max_duration
        if length is not None and snapshot.now + length <= claim.at:
            return True
        preemption, tiers = snapshot.preemption, snapshot.policy.tiers
        mine, its = tiers[asker.request.tier], tiers[claim.asker.request.tier]
        return (
            preemption.by_itself
            and mine.points < its.points
            and (
                mine.preemptible == "always"
                or (mine.preemptible == "borrowed" and asker.class_ is not Class.GUARANTEED)
            )
            and snapshot.now + preemption.min_runtime + preemption.grace <= claim.at
        )

    def _claim(self, holding: Holding) -> Claim | None:
        version, claim = self._found.get(holding, (-1, None))
        if version != self._snapshot.version(holding.pool):
            claim = self._best(holding)
            self._found[holding] = (self._snapshot.version(holding.pool), claim)
        return claim

    def _best(self, holding: Holding) -> Claim | None:
        snapshot = self._snapshot
        leases = list(snapshot.leases_of(holding))
        best: tuple[tuple[float, float, str], Request, int] | None = None
        for ask, gpus in self._asks[holding]:
            smaller = sum(lease.gpus for lease in leases if lease.gpus < gpus)
            over = holding.taken + gpus - holding.quota
            if over <= 0 or over > smaller:
                continue
            for group in ask.groups:
                if group:
                    key = _rank(snapshot, group, holding)
                    if best is None or key < best[0]:
                        best = (key, group.head, gpus)
        if best is None:
            return None
        key, request, gpus = best
        rights = snapshot.rights(request)
        assert rights is not None
        asker = Asker(request, holding, gpus, Class.GUARANTEED, rights)
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


def _rank(snapshot: Snapshot, group: Group, holding: Holding) -> tuple[float, float, str]:
    """How the first of a group ranks among all of its account: the lower comes first."""
    head = group.head
    score = group.score(snapshot, holding) + snapshot.order.source_points(head.source, holding)
    return (-score, head.submitted, head.id)
