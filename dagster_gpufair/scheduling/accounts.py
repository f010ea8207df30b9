"""What each account uses in each pool, what it is sure of, and what others must leave to it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from dagster_gpufair.policy.in_force import granted, held
from dagster_gpufair.policy.models import Policy
from dagster_gpufair.scheduling.holding import Holding
from dagster_gpufair.scheduling.model import Account, Lease, Request

LEAST_FACTOR, MOST_FACTOR = 0.25, 4.0
"""How far what an account has borrowed of late can move its weight."""

REST_WEIGHT = 1.0
"""The weight of the rest of a team beside its projects."""


def account_of(policy: Policy, of: Request | Lease, pool: str) -> Account:
    """The account that its GPUs in a pool count for: its project's if that has a quota there, or grants."""
    return Account(of.team, _project_of(policy, of.team, of.project, pool))


def _project_of(policy: Policy, team: str, project: str | None, pool: str) -> str | None:
    if project is None or team not in policy.teams:
        return None
    written = policy.teams[team].projects.get(project)
    if written is None:
        return None
    if written.quota.get(pool) or any(
        (grant.team, grant.project, grant.pool) == (team, project, pool) for grant in policy.grants
    ):
        return project
    return None


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
        self._granted = granted(policy, now) if policy.grants else {}
        self._granted_to_team: dict[tuple[str, str], int] = {}
        for (name, _, pool), gpus in self._granted.items():
            together = self._granted_to_team.get((name, pool), 0)
            self._granted_to_team[name, pool] = together + gpus
        self._windows = held(policy, now) if policy.windows else {}
        self._used: dict[tuple[str, str], dict[str | None, float]] = {}
        hours_in: dict[str, list[float]] = {}
        for (account, pool), hours in used.items():
            hours_in.setdefault(pool, []).append(hours)
            theirs = self._used.setdefault((account.team, pool), {})
            theirs[account.project] = theirs.get(account.project, 0.0) + hours
        # fsum is exact, so that the order of the dict does not show.
        self._all_used = {pool: math.fsum(hours) for pool, hours in hours_in.items()}
        self._all_weights = math.fsum(team.weight for team in policy.teams.values())
        self._part_ready = {
            pool: (gpus, sum(team.quota.get(pool, 0) for team in policy.teams.values()))
            for pool, gpus in ready.items()
        }
        self._holdings: dict[tuple[str, str | None, str], Holding] = {}
        for lease in leases:
            self.holding(lease, lease.pool).take(lease.gpus, lease.source)
        self._keepers = {
            pool: [team for name in policy.teams if (team := self._keeper(name, pool))]
            for pool in policy.pools
        }
        self.held_back = {
            pool: sum(keeper.held_back_from_other_teams for keeper in keepers)
            for pool, keepers in self._keepers.items()
        }

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

    def may_hold_back(self, pool: str) -> bool:
        """Whether anything could be held back in a pool, as use comes and goes."""
        return bool(self._keepers.get(pool))

    def held_back_by_others(
        self, holding: Holding, released: Mapping[Holding, int] | None = None
    ) -> int:
        """The GPUs of the pool that this account must leave to others.

        ``released`` says what accounts, and teams as one, have less than now, if that is not the question.
        """
        if released:
            return self._held_back_after(holding, released)
        by_all = self.held_back.get(holding.pool, 0)
        if holding.whole is None:
            return by_all - holding.held_back
        for_siblings = sum(other.held_back for other in holding.siblings)
        return by_all - holding.held_back_from_other_teams + for_siblings

    def _held_back_after(self, holding: Holding, released: Mapping[Holding, int]) -> int:
        def kept(account: Holding) -> int:
            return max(0, account.unlent - account.taken + released.get(account, 0))

        by_teams = sum(
            max(kept(team), sum(kept(member) for member in team.members))
            for team in self._keepers.get(holding.pool, ())
            if team is not holding.team
        )
        return by_teams + sum(kept(sibling) for sibling in holding.siblings)

    def keepers(self, holding: Holding) -> list[tuple[Account, int]]:
        """Who else has GPUs of the pool held back, and how many, by name: teams, or projects of them."""
        keeping: list[Holding] = [*holding.siblings]
        for team in self._keepers.get(holding.pool, ()):
            if team is not holding.team:
                by_its_projects = team.held_back < team.held_back_from_other_teams
                keeping += team.members if by_its_projects else [team]
        kept = [(each.account, each.held_back) for each in keeping if each.held_back]
        return sorted(kept, key=lambda each: str(each[0]))

    def _hold_back(self, holding: Holding, before: int) -> None:
        after = holding.held_back_from_other_teams
        if before != after:
            self.held_back[holding.pool] += after - before

    def _keeper(self, name: str, pool: str) -> Holding | None:
        """The team as one, if part of its quota in the pool may be held back from others."""
        written = self._policy.teams[name]
        limits = pool in written.lend_limit or (name, pool) in self._windows
        if not limits and not any(pool in of.lend_limit for of in written.projects.values()):
            return None
        team = self.account(Account(name), pool).team
        return team if team.unlent or any(member.unlent for member in team.members) else None

    def _team_quota(self, name: str, pool: str) -> int:
        """A team's quota with all that is in force: its grants, its projects' and its windows."""
        extra = self._granted_to_team.get((name, pool), 0) + self._windows.get((name, pool), 0)
        return self._policy.teams[name].quota.get(pool, 0) + extra

    def _add_team(self, name: str, pool: str) -> None:
        """Add all accounts of a team in the pool."""
        team = self._policy.teams.get(name)
        if team is None:
            stranger = Holding(
                Account(name), pool, 0, None, 0, due=1.0, had=1.0, effective_weight=1.0
            )
            self._holdings[name, None, pool] = stranger
            return
        quota, window = self._team_quota(name, pool), self._windows.get((name, pool), 0)
        used = self._used.get((name, pool), {})
        together = math.fsum(used.values())
        whole = self._weighed(
            Account(name),
            pool,
            quota=quota,
            borrow_limit=team.borrow_limit.get(pool),
            unlent=window + max(0, quota - window - team.lend_limit.get(pool, quota)),
            weight=team.weight,
            of_weights=self._all_weights,
            used=together,
            of_used=self._all_used.get(pool, 0.0),
        )
        projects = {
            project: written
            for project, written in team.projects.items()
            if _project_of(self._policy, name, project, pool)
        }
        if not projects:
            self._holdings[name, None, pool] = whole
            return
        weights = math.fsum([REST_WEIGHT, *(written.weight for written in projects.values())])
        rest = quota
        for project, written in projects.items():
            its = written.quota.get(pool, 0) + self._granted.get((name, project, pool), 0)
            rest -= its
            self._holdings[name, project, pool] = self._weighed(
                Account(name, project),
                pool,
                quota=its,
                borrow_limit=written.borrow_limit.get(pool),
                unlent=max(0, its - written.lend_limit.get(pool, its)),
                weight=written.weight,
                of_weights=weights,
                used=used.get(project, 0.0),
                of_used=together,
                whole=whole,
            )
        self._holdings[name, None, pool] = self._weighed(
            Account(name),
            pool,
            quota=rest,
            borrow_limit=None,
            unlent=0,
            weight=REST_WEIGHT,
            of_weights=weights,
            used=used.get(None, 0.0),
            of_used=together,
            whole=whole,
        )

    def _weighed(
        self,
        account: Account,
        pool: str,
        *,
        quota: int,
        borrow_limit: int | None,
        unlent: int,
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
            quota=quota,
            borrow_limit=borrow_limit,
            unlent=self._as_ready(pool, unlent),
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

    def _as_ready(self, pool: str, gpus: int) -> int:
        """Scaled down with the pool when less than all quotas is ready; grants and windows come on top."""
        ready, quotas = self._part_ready.get(pool, (0, 0))
        return gpus * ready // quotas if ready < quotas else gpus
