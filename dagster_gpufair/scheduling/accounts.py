"""What each account uses in each pool, what it is sure of, and what others must leave to it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from dagster_gpufair.policy.models import Borrowing, Policy
from dagster_gpufair.policy.quantities import ONE_GPU
from dagster_gpufair.scheduling.model import Account, Class, Lease, Request

LEAST_FACTOR, MOST_FACTOR = 0.25, 4.0
"""How far what an account has borrowed of late can move its weight."""


def account_of(of: Request | Lease) -> Account:
    """The account whose quota it counts against: its team's."""
    return Account(of.team)


class Rights(NamedTuple):
    """What work of a tier and kind may do, whoever asks.

    ``urgent`` work is not bound by the rules for borrowing; ``barred`` names the rule that keeps other
    work from borrowing, if one does.
    """

    urgent: bool
    barred: str | None


def rights_of(policy: Policy, tier: str, kind: str | None) -> Rights | None:
    """The rights of a tier and kind; a tier that is not in the policy has none."""
    if tier not in policy.tiers:
        return None
    return Rights(policy.tiers[tier].may_preempt, _barred(policy.borrowing, tier, kind))


def _barred(borrowing: Borrowing, tier: str, kind: str | None) -> str | None:
    if borrowing.mode == "off":
        return "borrowing is off"
    if borrowing.tiers != "all" and tier not in borrowing.tiers:
        return f"tier {tier} may not borrow ({', '.join(borrowing.tiers)} may)"
    if borrowing.kinds != "all" and kind not in borrowing.kinds:
        work = "work without a kind" if kind is None else f"work of kind {kind}"
        return f"{work} may not borrow ({', '.join(borrowing.kinds)} may)"
    return None


@dataclass(slots=True, eq=False)
class Holding:
    """One account in one pool: what it uses, and what the policy gives it there.

    ``unlent`` is the part of the quota that nobody else may take. ``due`` is its weight's part of all
    weights, ``had`` its part of all that was borrowed in the pool of late, and ``owed`` how far it has
    had less than is due: 1 if nothing, 0 if just that, below 0 if more. Using one's own quota is never
    held against anyone.
    """

    account: Account
    pool: str
    quota: int
    borrow_limit: int | None
    unlent: int
    due: float
    had: float
    owed: float = field(init=False)
    share: float = field(init=False)
    effective_weight: float
    use: int = 0
    by_source: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.owed = (self.due - self.had) / self.due
        self.share = min(max(self.owed, -1.0), 1.0)

    @property
    def overage(self) -> int:
        """Use beyond the quota."""
        return max(0, self.use - self.quota)

    @property
    def held_back(self) -> int:
        """What is kept for it: what it does not lend, less what it already uses."""
        return max(0, self.unlent - self.use)

    @property
    def saturation(self) -> float:
        """How well it is served above its quota: one GPU more, by its effective weight.

        One GPU for everybody, so that asking for more at once is no drawback.
        """
        return (self.overage + ONE_GPU) / ONE_GPU / self.effective_weight

    def class_of(self, gpus: int, urgent: bool) -> Class:
        """Urgent by its tier, else guaranteed if the quota covers it, else borrowing."""
        if urgent:
            return Class.URGENT
        return Class.GUARANTEED if self.use + gpus <= self.quota else Class.BORROWING

    def may_borrow(self, gpus: int) -> bool:
        """Whether so many more keep what it has above its quota within its limit."""
        return self.borrow_limit is None or self.use + gpus - self.quota <= self.borrow_limit

    def allowed_class(self, gpus: int, rights: Rights) -> Class | None:
        """The class in which the rules let it have so many more, wherever they come from; or None."""
        class_ = self.class_of(gpus, rights.urgent)
        if class_ is Class.BORROWING and (rights.barred or not self.may_borrow(gpus)):
            return None
        return class_

    def take(self, gpus: int, source: str | None) -> None:
        """Count GPUs that were granted to it."""
        self.use += gpus
        if source is not None:
            self.by_source[source] = self.by_source.get(source, 0) + gpus


class Accounts:
    """All accounts in all pools, as leases and starts leave them.

    Names that the policy does not know have a quota of nothing; what they hold still counts.
    """

    def __init__(
        self,
        policy: Policy,
        leases: Iterable[Lease],
        used: Mapping[tuple[Account, str], float],
        ready: Mapping[str, int],
    ) -> None:
        self._policy = policy
        self._used = used
        hours_in: dict[str, list[float]] = {}
        for (_, pool), hours in used.items():
            hours_in.setdefault(pool, []).append(hours)
        # fsum is exact, so that the order of the dict does not show.
        self._all_used = {pool: math.fsum(hours) for pool, hours in hours_in.items()}
        self._all_weights = math.fsum(team.weight for team in policy.teams.values())
        self._part_ready = {
            pool: (gpus, sum(team.quota.get(pool, 0) for team in policy.teams.values()))
            for pool, gpus in ready.items()
        }
        self._holdings: dict[tuple[Account, str], Holding] = {}
        for lease in leases:
            self.holding(account_of(lease), lease.pool).take(lease.gpus, lease.source)
        self._keepers = {
            pool: [
                self.holding(Account(name), pool)
                for name, team in policy.teams.items()
                if team.lend_limit.get(pool, math.inf) < team.quota.get(pool, 0)
            ]
            for pool in policy.pools
        }
        self.held_back = {
            pool: sum(keeper.held_back for keeper in keepers)
            for pool, keepers in self._keepers.items()
        }

    def holding(self, account: Account, pool: str) -> Holding:
        """The account in the pool."""
        holding = self._holdings.get((account, pool))
        if holding is None:
            holding = self._holdings[account, pool] = self._from_policy(account, pool)
        return holding

    def take(self, holding: Holding, gpus: int, source: str | None) -> None:
        """Count GPUs that start now; what its owner uses is no longer held back for it."""
        before = holding.held_back
        holding.take(gpus, source)
        if before:
            self.held_back[holding.pool] -= before - holding.held_back

    def held_back_by_others(self, holding: Holding) -> int:
        """The GPUs of the pool that this account must leave to others."""
        return self.held_back.get(holding.pool, 0) - holding.held_back

    def keepers(self, holding: Holding) -> list[Holding]:
        """The other accounts for which something is held back in the pool, by name."""
        others = [
            other
            for other in self._keepers.get(holding.pool, ())
            if other is not holding and other.held_back
        ]
        return sorted(others, key=lambda other: str(other.account))

    def _from_policy(self, account: Account, pool: str) -> Holding:
        team = self._policy.teams.get(account.team)
        if team is None:
            return Holding(account, pool, 0, None, 0, due=1.0, had=1.0, effective_weight=1.0)
        quota = team.quota.get(pool, 0)
        holding = Holding(
            account=account,
            pool=pool,
            quota=quota,
            borrow_limit=team.borrow_limit.get(pool),
            unlent=self._as_ready(pool, max(0, quota - team.lend_limit.get(pool, quota))),
            due=team.weight / self._all_weights,
            had=self._had(account, pool),
            effective_weight=team.weight,
        )
        factor = 1 + self._policy.fair_share.strength * holding.owed
        holding.effective_weight *= min(max(factor, LEAST_FACTOR), MOST_FACTOR)
        return holding

    def _had(self, account: Account, pool: str) -> float:
        all_used = self._all_used.get(pool, 0.0)
        return self._used.get((account, pool), 0.0) / all_used if all_used > 0 else 0.0

    def _as_ready(self, pool: str, gpus: int) -> int:
        """Scaled down with the pool when less than all quotas is ready."""
        ready, quotas = self._part_ready.get(pool, (0, 0))
        return gpus * ready // quotas if ready < quotas else gpus


def borrowed_part(policy: Policy, leases: Iterable[Lease]) -> frozenset[str]:
    """The leases, by id, that the quota of their account does not cover.

    A quota covers higher tiers first, then the older lease. One that does not fit whole into what is
    left of the quota is borrowed, and later smaller ones may still be covered. So what is borrowed is
    the account's least important and newest work.
    """

    def first_covered(lease: Lease) -> tuple[float, float, str]:
        tier = policy.tiers.get(lease.tier)
        return (-(tier.points if tier else 0.0), lease.started, lease.id)

    left: dict[tuple[Account, str], int] = {}
    borrowed = set()
    for lease in sorted(leases, key=first_covered):
        account = account_of(lease)
        team = policy.teams.get(account.team)
        quota = team.quota.get(lease.pool, 0) if team else 0
        still = left.setdefault((account, lease.pool), quota)
        if lease.gpus <= still:
            left[account, lease.pool] = still - lease.gpus
        else:
            borrowed.add(lease.id)
    return frozenset(borrowed)
