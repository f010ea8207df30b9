"""What each account uses in each pool, what it is guaranteed, and what is held back for it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from dagster_gpufair.policy.models import Policy
from dagster_gpufair.scheduling.accounts.entitlements import (
    Entitlement,
    Entitlements,
    Key,
    projects_of,
)
from dagster_gpufair.scheduling.accounts.holding import Holding
from dagster_gpufair.scheduling.model import Account, Lease, Request

LEAST_FACTOR, MOST_FACTOR = 0.25, 4.0
"""How far the recent borrowing of an account can move its weight (design §4)."""

REST_WEIGHT = 1.0
"""The weight of the rest of a team beside its projects."""


def account_of(policy: Policy, of: Request | Lease, pool: str) -> Account:
    """The account that its GPUs in a pool count for: its project's if that has a quota there, or grants."""
    projects = projects_of(policy, of.team, pool)
    return Account(of.team, of.project if of.project in projects else None)


class Accounts:
    """All accounts in all pools, as leases, promises and starts leave them.

    Names that the policy does not know have a quota of nothing; what they hold still counts. Grants and
    windows in force at ``now`` are part of the quotas.
    """

    def __init__(
        self,
        policy: Policy,
        leases: Iterable[Lease],
        used: Mapping[tuple[Account, str], float],
        ready: Mapping[str, int],
        now: float,
    ) -> None:
        self._policy = policy
        self.entitlements = Entitlements(policy, ready)
        self._in_force: dict[str, Key] = {}
        self._now = now
        self._used: dict[tuple[str, str], dict[str | None, float]] = {}
        hours_in: dict[str, list[float]] = {}
        for (account, pool), hours in used.items():
            hours_in.setdefault(pool, []).append(hours)
            theirs = self._used.setdefault((account.team, pool), {})
            theirs[account.project] = theirs.get(account.project, 0.0) + hours
        # fsum is exact, so that the order of the dict does not show.
        self._all_used = {pool: math.fsum(hours) for pool, hours in hours_in.items()}
        self._all_weights = math.fsum(team.weight for team in policy.teams.values())
        self._holdings: dict[tuple[str, str | None, str], Holding] = {}
        for lease in leases:
            self.holding(lease, lease.pool).take(lease.gpus, lease.source)
        self._keepers: dict[tuple[str, Key], list[Holding]] = {}
        self._held_back: dict[str, int] = {}

    def in_force(self, pool: str) -> Key:
        """Which of a pool's grants and windows are in force now."""
        if pool not in self._in_force:
            self._in_force[pool] = self.entitlements.key(pool, self._now)
        return self._in_force[pool]

    def held_back(self, pool: str) -> int:
        """All that is held back in a pool."""
        if pool not in self._held_back:
            self._held_back[pool] = sum(
                team.held_back_from_other_teams for team in self.keepers_in(pool)
            )
        return self._held_back[pool]

    def keepers_in(self, pool: str, key: Key | None = None) -> list[Holding]:
        """The teams as one for which anything may be kept in a pool while those are in force; else now."""
        key = self.in_force(pool) if key is None else key
        if (pool, key) not in self._keepers:
            entitled = self.entitlements.of(pool, key)
            kept = {name for name, its in entitled.teams.items() if its.unlent}
            kept |= {account.team for account, its in entitled.accounts.items() if its.unlent}
            teams = [self.account(Account(name), pool).team for name in sorted(kept)]
            self._keepers[pool, key] = teams
        return self._keepers[pool, key]

    def holding(self, of: Request | Lease, pool: str) -> Holding:
        """The account that its GPUs in the pool count for."""
        key = (of.team, of.project, pool)
        holding = self._holdings.get(key)
        if holding is None:
            holding = self._holdings[key] = self.account(account_of(self._policy, of, pool), pool)
        return holding

    def account(self, account: Account, pool: str) -> Holding:
        """The account in the pool."""
        key = (*account, pool)
        if key not in self._holdings:
            self._add_team(account.team, pool)
        holding = self._holdings.get(key)
        return self.account(Account(account.team), pool) if holding is None else holding

    def take(self, holding: Holding, gpus: int, source: str | None) -> None:
        """Count GPUs that start now; what its owner has is no longer held back for it."""
        before = holding.held_back_from_other_teams
        holding.take(gpus, source)
        self._hold_back(holding, before)

    def promise(self, holding: Holding, gpus: int, of_team: int) -> None:
        """Count GPUs that are kept for it; less than nothing when they are kept no more.

        ``of_team`` is what that adds to its team as one.
        """
        before = holding.held_back_from_other_teams
        holding.promise(gpus, of_team)
        self._hold_back(holding, before)

    def held_back_by_others(self, holding: Holding) -> int:
        """The GPUs of the pool that this account must leave to others."""
        by_all = self.held_back(holding.pool)
        if holding.whole is None:
            return by_all - holding.held_back
        for_siblings = sum(other.held_back for other in holding.siblings)
        return by_all - holding.held_back_from_other_teams + for_siblings

    def keepers(self, holding: Holding) -> list[tuple[Account, int]]:
        """Who else has GPUs of the pool held back, and how many, by name: teams, or projects of them."""
        keeping: list[Holding] = [*holding.siblings]
        for team in self.keepers_in(holding.pool):
            if team is not holding.team:
                by_its_projects = team.held_back < team.held_back_from_other_teams
                keeping += team.members if by_its_projects else [team]
        kept = [(each.account, each.held_back) for each in keeping if each.held_back]
        return sorted(kept, key=lambda each: str(each[0]))

    def _hold_back(self, holding: Holding, before: int) -> None:
        after = holding.held_back_from_other_teams
        if before != after and holding.pool in self._held_back:
            self._held_back[holding.pool] += after - before

    def _add_team(self, name: str, pool: str) -> None:
        """Add all accounts of a team in the pool."""
        team = self._policy.teams.get(name)
        if team is None:
            stranger = Holding(
                Account(name), pool, 0, None, 0, due=1.0, had=1.0, effective_weight=1.0
            )
            self._holdings[name, None, pool] = stranger
            return
        entitled = self.entitlements.of(pool, self.in_force(pool))
        its = entitled.teams[name]
        used = self._used.get((name, pool), {})
        together = math.fsum(used.values())
        whole = self._weighed(
            Account(name),
            pool,
            entitled=its,
            borrow_limit=team.borrow_limit.get(pool),
            weight=team.weight,
            of_weights=self._all_weights,
            used=together,
            of_used=self._all_used.get(pool, 0.0),
        )
        projects = projects_of(self._policy, name, pool)
        if not projects:
            self._holdings[name, None, pool] = whole
            return
        weights = math.fsum([REST_WEIGHT, *(written.weight for written in projects.values())])
        for project in (*projects, None):
            written = None if project is None else projects[project]
            account = Account(name, project)
            self._holdings[name, project, pool] = self._weighed(
                account,
                pool,
                entitled=entitled.accounts[account],
                borrow_limit=None if written is None else written.borrow_limit.get(pool),
                weight=REST_WEIGHT if written is None else written.weight,
                of_weights=weights,
                used=used.get(project, 0.0),
                of_used=together,
                whole=whole,
            )

    def _weighed(
        self,
        account: Account,
        pool: str,
        *,
        entitled: Entitlement,
        borrow_limit: int | None,
        weight: float,
        of_weights: float,
        used: float,
        of_used: float,
        whole: Holding | None = None,
    ) -> Holding:
        """An account with its effective weight, among those that share the weights and what was used."""
        holding = Holding(
            account=account,
            pool=pool,
            quota=entitled.quota,
            borrow_limit=borrow_limit,
            unlent=entitled.unlent,
            due=weight / of_weights,
            had=used / of_used if of_used > 0 else 0.0,
            effective_weight=weight,
            whole=whole,
        )
        factor = 1 + self._policy.fair_share.strength * holding.owed
        holding.effective_weight *= min(max(factor, LEAST_FACTOR), MOST_FACTOR)
        if whole is not None:
            whole.members.append(holding)
        return holding
