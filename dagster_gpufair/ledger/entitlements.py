"""What each account is guaranteed in a pool at a moment, and what others must leave to it (design §4).

From the policy alone, for the audit, which must not rest on what the decision made of the same rules.
GPU amounts in thousandths, moments in seconds since the epoch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping
from typing import NamedTuple

from dagster_gpufair.policy.in_force import granted, held
from dagster_gpufair.policy.models import Policy, Project, Team
from dagster_gpufair.scheduling.model import Account


class Entitlement(NamedTuple):
    """``quota`` counts grants and windows; ``unlent`` is the part of it that nobody else may take.

    ``lasting`` is what ``unlent`` would be without grants and windows.
    """

    quota: int
    unlent: int
    lasting: int
    borrow_limit: int | None = None


NOTHING = Entitlement(0, 0, 0)


class Known:
    """Entitlements at many moments, each worked out once: they change with what is in force only.

    The policies asked about must live as long as this does.
    """

    def __init__(self) -> None:
        self._found: dict[Hashable, Entitlements] = {}

    def at(self, moment: float, policy: Policy, pool: str, in_service: int) -> Entitlements:
        """In a pool at a moment, with so many of its GPUs in service."""
        grants = {
            (team, project): gpus
            for (team, project, where), gpus in granted(policy, moment).items()
            if where == pool
        }
        windows = {
            team: gpus for (team, where), gpus in held(policy, moment).items() if where == pool
        }
        key = (id(policy), pool, in_service, frozenset(grants.items()), frozenset(windows.items()))
        if key not in self._found:
            self._found[key] = Entitlements(policy, pool, in_service, grants, windows)
        return self._found[key]


class Entitlements:
    """Teams, and their accounts, in one pool, with so many of its GPUs in service.

    ``grants`` and ``windows`` are those in force there, by team and project, and by team.
    """

    def __init__(
        self,
        policy: Policy,
        pool: str,
        in_service: int,
        grants: Mapping[tuple[str, str | None], int],
        windows: Mapping[str, int],
    ) -> None:
        self._policy = policy
        self._pool = pool
        self._in_service = in_service
        self._granted = grants
        self._windows = windows
        self._quotas = {team: self._quota(team) for team in policy.teams}
        self.teams = {team: self._team(team) for team in policy.teams}
        """Each team as a whole."""
        self._projects = {team: self._projects_of(team) for team in policy.teams}
        lasting = {
            team: max(its.lasting, sum(each.lasting for each in self._projects[team].values()))
            for team, its in self.teams.items()
        }
        self._wanted = sum(
            max(its.unlent, sum(each.unlent for each in self._projects[team].values()))
            - lasting[team]
            for team, its in self.teams.items()
        )
        self._room = max(0, in_service - sum(lasting.values()))

    def account(self, team: str, project: str | None) -> Account:
        """The account that work of a team counts for."""
        return Account(team, project if project in self._projects.get(team, {}) else None)

    def of(self, account: Account) -> Entitlement:
        """What an account has: a project its own, and the rest of the team what its projects leave."""
        projects = self._projects.get(account.team)
        if not projects:
            return self.teams.get(account.team, NOTHING)
        if account.project is not None:
            return projects[account.project]
        rest = self._quotas[account.team] - sum(its.quota for its in projects.values())
        return Entitlement(rest, 0, 0)

    def kept_from(self, account: Account, use: Mapping[Account, int]) -> int:
        """What an account must leave to all others, given what each uses in the pool."""
        of_team: Counter[str] = Counter()
        for each, gpus in use.items():
            of_team[each.team] += gpus
        kept = 0
        for team, whole in self.teams.items():
            by_project = {
                project: max(0, self._capped(its) - use.get(Account(team, project), 0))
                for project, its in self._projects[team].items()
            }
            if team != account.team:
                kept += max(self._capped(whole) - of_team[team], sum(by_project.values()), 0)
            else:
                kept += sum(
                    gpus for project, gpus in by_project.items() if project != account.project
                )
        return kept

    def _capped(self, its: Entitlement) -> int:
        """Grants and windows keep at most what the quotas leave of the pool, each by its part (design §5)."""
        beyond = max(0, its.unlent - its.lasting)
        if self._wanted <= self._room:
            return its.unlent
        return its.unlent - beyond + beyond * self._room // self._wanted

    def _quota(self, team: str) -> int:
        grants = sum(gpus for (name, _), gpus in self._granted.items() if name == team)
        written = self._policy.teams[team].quota.get(self._pool, 0)
        return written + grants + self._windows.get(team, 0)

    def _team(self, name: str) -> Entitlement:
        team, quota, window = (
            self._policy.teams[name],
            self._quotas[name],
            self._windows.get(name, 0),
        )
        unlent = window + self._not_lent(team, quota - window)
        lasting = self._not_lent(team, team.quota.get(self._pool, 0))
        limit = team.borrow_limit.get(self._pool)
        return Entitlement(quota, self._scaled(unlent), self._scaled(lasting), limit)

    def _projects_of(self, name: str) -> dict[str, Entitlement]:
        """Those with a quota here, or a grant at any time; others are part of the team's rest."""
        given = {
            (grant.team, grant.project) for grant in self._policy.grants if grant.pool == self._pool
        }
        projects = {}
        for project, its in self._policy.teams[name].projects.items():
            if its.quota.get(self._pool) or (name, project) in given:
                written = its.quota.get(self._pool, 0)
                quota = written + self._granted.get((name, project), 0)
                projects[project] = Entitlement(
                    quota,
                    self._scaled(self._not_lent(its, quota)),
                    self._scaled(self._not_lent(its, written)),
                    its.borrow_limit.get(self._pool),
                )
        return projects

    def _not_lent(self, account: Team | Project, quota: int) -> int:
        return max(0, quota - account.lend_limit.get(self._pool, quota))

    def _scaled(self, unlent: int) -> int:
        """Less is kept where less of the pool is in service than the quotas in the file have."""
        quotas = sum(team.quota.get(self._pool, 0) for team in self._policy.teams.values())
        return unlent * self._in_service // quotas if self._in_service < quotas else unlent
