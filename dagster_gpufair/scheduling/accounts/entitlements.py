"""What every account is entitled to in a pool, now and at any moment to come.

A quota counts the grants and windows that are in force then. ``unlent`` is the part of it that nobody else
may take. Recurring windows are looked at for `HORIZON`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from dagster_gpufair.policy.in_force import in_force, spells
from dagster_gpufair.policy.models import Grant, Policy, Project, Team, Window
from dagster_gpufair.scheduling.model import Account

HORIZON = 32 * 86400.0
"""Seconds for which what begins later is known."""


class Entitlement(NamedTuple):
    """What one account, or a team as one, has of a pool."""

    quota: int
    unlent: int


NOTHING = Entitlement(0, 0)
Key = frozenset[int]
"""Which of a pool's grants and windows are in force."""


class PoolEntitlements(NamedTuple):
    """Of each team as one, and in teams with projects of each of their accounts."""

    teams: Mapping[str, Entitlement]
    accounts: Mapping[Account, Entitlement]


class Entitlements:
    """Of all teams in all pools.

    Args:
        ready: the GPUs of each pool that are not in maintenance.
    """

    def __init__(self, policy: Policy, ready: Mapping[str, int]) -> None:
        self._policy, self._ready = policy, ready
        self._extras: dict[str, list[Grant | Window]] = {}
        extras: list[Grant | Window] = [*policy.grants, *policy.windows]
        for extra in extras:
            if extra.team in policy.teams:
                self._extras.setdefault(extra.pool, []).append(extra)
        self._quotas: dict[str, int] = {}
        self._found: dict[tuple[str, Key], PoolEntitlements] = {}
        self._moments: dict[str, tuple[float, list[tuple[float, Key]]]] = {}

    def key(self, pool: str, at: float) -> Key:
        """What of a pool's grants and windows is in force at a moment."""
        extras = self._extras.get(pool, ())
        return frozenset(number for number, extra in enumerate(extras) if in_force(extra, at))

    def of(self, pool: str, key: Key) -> PoolEntitlements:
        """What all have while those are in force."""
        found = self._found.get((pool, key))
        if found is None:
            found = self._found[pool, key] = self._work_out(pool, key)
        return found

    def changes(self, pool: str, now: float) -> Sequence[tuple[float, Key]]:
        """When something begins or ends within the horizon, earliest first, and what is in force then."""
        known = self._moments.get(pool)
        if known is None or known[0] != now:
            known = self._moments[pool] = (now, self._find_changes(pool, now))
        return known[1]

    def _find_changes(self, pool: str, now: float) -> list[tuple[float, Key]]:
        toggled: dict[float, set[int]] = {}
        for number, extra in enumerate(self._extras.get(pool, ())):
            for begins, ends in spells(extra, now, now + HORIZON):
                for at in (begins, ends):
                    if now < at < math.inf:
                        toggled.setdefault(at, set()).symmetric_difference_update((number,))
        key, found = self.key(pool, now), []
        for at in sorted(toggled):
            if toggled[at]:
                key = key.symmetric_difference(toggled[at])
                found.append((at, key))
        return found

    def recurs(self, pool: str, key: Key) -> bool:
        """Whether a window by schedule is among those."""
        extras = self._extras.get(pool, ())
        return any(getattr(extras[number], "cron", None) is not None for number in key)

    def beneficiaries(self, pool: str, key: Key, before: Key) -> frozenset[str]:
        """The teams for which more is kept from others while these are in force than while those were."""
        now, then = self.of(pool, before), self.of(pool, key)
        kept = {name for name, its in then.teams.items() if its.unlent > now.teams[name].unlent}
        kept |= {
            account.team
            for account, its in then.accounts.items()
            if its.unlent > now.accounts[account].unlent
        }
        return frozenset(kept)

    def _work_out(self, pool: str, key: Key) -> PoolEntitlements:
        extras = [self._extras[pool][number] for number in sorted(key)]
        teams: dict[str, Entitlement] = {}
        accounts: dict[Account, Entitlement] = {}
        for_good: dict[str, int] = {}
        lasting: dict[Account, int] = {}
        of_teams: dict[str, int] = {}
        for name, team in self._policy.teams.items():
            its = [extra for extra in extras if extra.team == name]
            window = sum(extra.gpus for extra in its if isinstance(extra, Window))
            written = team.quota.get(pool, 0)
            quota = written + sum(extra.gpus for extra in its)
            of_teams[name] = self._as_ready(pool, _not_lent(team, pool, written))
            unlent = self._as_ready(pool, window + _not_lent(team, pool, quota - window))
            teams[name] = Entitlement(quota, unlent)
            rest, members = quota, 0
            for project, of_project in projects_of(self._policy, name, pool).items():
                account = Account(name, project)
                own = of_project.quota.get(pool, 0)
                granted = sum(
                    extra.gpus
                    for extra in its
                    if isinstance(extra, Grant) and extra.project == project
                )
                lasting[account] = self._as_ready(pool, _not_lent(of_project, pool, own))
                kept = self._as_ready(pool, _not_lent(of_project, pool, own + granted))
                accounts[account] = Entitlement(own + granted, kept)
                rest -= own + granted
                members += lasting[account]
            if projects_of(self._policy, name, pool):
                accounts[Account(name)] = Entitlement(rest, 0)
            for_good[name] = max(of_teams[name], members)
        return (
            self._within_the_pool(pool, teams, accounts, for_good, of_teams, lasting)
            if extras
            else (PoolEntitlements(teams, accounts))
        )

    def _within_the_pool(
        self,
        pool: str,
        teams: Mapping[str, Entitlement],
        accounts: Mapping[Account, Entitlement],
        for_good: Mapping[str, int],
        of_teams: Mapping[str, int],
        lasting: Mapping[Account, int],
    ) -> PoolEntitlements:
        """Grants and windows add at most what the quotas leave of the ready pool; all of them alike."""
        more = {
            name: max(
                its.unlent,
                sum(each.unlent for account, each in accounts.items() if account.team == name),
            )
            - for_good[name]
            for name, its in teams.items()
        }
        wanted = sum(more.values())
        ready = self._ready.get(pool, math.inf)
        if wanted <= ready - sum(for_good.values()):
            return PoolEntitlements(teams, accounts)
        room = max(0, int(ready) - sum(for_good.values()))

        def scaled(its: Entitlement, least: int) -> Entitlement:
            beyond = max(0, its.unlent - least)
            return Entitlement(its.quota, its.unlent - beyond + beyond * room // wanted)

        return PoolEntitlements(
            {name: scaled(its, of_teams[name]) for name, its in teams.items()},
            {account: scaled(its, lasting.get(account, 0)) for account, its in accounts.items()},
        )

    def _as_ready(self, pool: str, gpus: int) -> int:
        """Scaled down with the pool when less than all quotas is ready."""
        ready = self._ready.get(pool)
        if pool not in self._quotas:
            written = (team.quota.get(pool, 0) for team in self._policy.teams.values())
            self._quotas[pool] = sum(written)
        quotas = self._quotas[pool]
        return gpus if ready is None or ready >= quotas else gpus * ready // quotas


def _not_lent(account: Team | Project, pool: str, quota: int) -> int:
    return max(0, quota - account.lend_limit.get(pool, quota))


def projects_of(policy: Policy, team: str, pool: str) -> Mapping[str, Project]:
    """The projects of a team that are accounts of their own there: those with a quota, or ever a grant."""
    written = policy.teams.get(team)
    if written is None or not written.projects:
        return {}
    granted = {grant.project for grant in policy.grants if (grant.team, grant.pool) == (team, pool)}
    return {
        name: project
        for name, project in written.projects.items()
        if project.quota.get(pool) or name in granted
    }
