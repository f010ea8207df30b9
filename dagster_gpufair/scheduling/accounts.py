"""What each account uses in each pool, what it is sure of, and what others must leave to it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from dagster_gpufair.policy.in_force import granted, held
from dagster_gpufair.policy.models import Borrowing, Policy
from dagster_gpufair.policy.quantities import ONE_GPU
from dagster_gpufair.scheduling.model import Account, Class, Lease, Request

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

    ``use`` is GPUs in leases, ``promised`` what is kept for requests whose victims leave; both count.
    ``pending`` is what it asks a person's approval for: that counts against its quota only.
    In a team with projects, ``whole`` is the team as one, by which it stands among the other teams, and
    the weights of its accounts are parts of the team's.
    """

    account: Account
    pool: str
    quota: int
    borrow_limit: int | None
    unlent: int
    due: float
    had: float
    owed: float = field(init=False)
    effective_weight: float
    use: int = 0
    promised: int = 0
    by_source: dict[str, int] = field(default_factory=dict)
    pending: int = 0
    whole: Holding | None = None
    members: list[Holding] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.owed = (self.due - self.had) / self.due

    @property
    def team(self) -> Holding:
        """Its team as one: itself, in a team without projects."""
        return self if self.whole is None else self.whole

    def __str__(self) -> str:
        """Its account; the rest of a team with projects is not taken for all of it."""
        is_rest = self.whole is not None and self.account.project is None
        return f"the rest of {self.account}" if is_rest else str(self.account)

    @property
    def siblings(self) -> list[Holding]:
        """The other accounts of its team."""
        if self.whole is None:
            return []
        return [other for other in self.whole.members if other is not self]

    @property
    def taken(self) -> int:
        """All that counts against its quota."""
        return self.use + self.promised

    @property
    def overage(self) -> int:
        """What it has beyond the quota."""
        return max(0, self.taken - self.quota)

    @property
    def share(self) -> float:
        """How far its team has had less than is due, between -1 and 1."""
        return min(max(self.team.owed, -1.0), 1.0)

    @property
    def held_back(self) -> int:
        """What is kept for it: what it does not lend, less what it already has."""
        return max(0, self.unlent - self.taken)

    @property
    def held_back_from_other_teams(self) -> int:
        """What other teams must leave to this team: by the team's own rule, or for its projects."""
        team = self.team
        return max(team.held_back, sum(member.held_back for member in team.members))

    @property
    def saturation(self) -> float:
        """How well its team is served above its quota: one GPU more, by its effective weight.

        One GPU for everybody, so that asking for more at once is no drawback.
        """
        return self.team.saturation_of(ONE_GPU)

    @property
    def inside(self) -> float:
        """How well it is served above its own quota, among the accounts of its team."""
        return 0.0 if self.whole is None else self.saturation_of(ONE_GPU)

    def saturation_of(self, more: int) -> float:
        """What it has beyond its quota, and so many more GPUs, by its effective weight."""
        return (self.overage + more) / ONE_GPU / self.effective_weight

    def class_of(self, gpus: int, urgent: bool, less: int = 0) -> Class:
        """Urgent by its tier, else guaranteed if its or its team's quota covers it, else borrowing.

        ``less`` of what it has counts as gone: what was promised to the asker itself.
        """
        return Class.URGENT if urgent else self.covers(gpus, less, less)

    def covers(self, gpus: int, less: int = 0, team_less: int = 0) -> Class:
        """What covers so many more: its own quota, the team's or none.

        ``less`` of what it has, and ``team_less`` of what its team has, counts as gone.
        """
        if self.use + self.promised + self.pending - less + gpus <= self.quota:
            return Class.GUARANTEED
        if self.whole is None:
            return Class.BORROWING
        covered = self.whole.covers(gpus, team_less)
        return Class.SHARED if covered is Class.GUARANTEED else covered

    def within_limits(self, gpus: int, class_: Class, less: int = 0, team_less: int = 0) -> bool:
        """Whether so many more keep what it, and its team, borrows within the limits."""
        if class_ <= Class.GUARANTEED:
            return True
        if self.whole is None:
            return self._within(gpus, less)
        inside = self._within(gpus, less)
        return inside and (class_ is Class.SHARED or self.whole._within(gpus, team_less))

    def limited_by(self, gpus: int) -> Holding:
        """Itself or its team: whose limit keeps it from borrowing so many more."""
        return self if self.whole is None or not self._within(gpus, 0) else self.whole

    def _within(self, gpus: int, less: int) -> bool:
        limit = self.borrow_limit
        return limit is None or self.taken - less + gpus - self.quota <= limit

    def allowed_class(self, gpus: int, rights: Rights, less: int = 0) -> Class | None:
        """The class in which the rules let it have so many more, wherever they come from; or None."""
        class_ = self.class_of(gpus, rights.urgent, less)
        return class_ if self.allows(gpus, class_, rights, less) else None

    def allows(self, gpus: int, class_: Class, rights: Rights, less: int = 0) -> bool:
        """Whether the rules let it have so many more in a class, wherever they come from."""
        if class_ is Class.BORROWING and rights.barred:
            return False
        return self.within_limits(gpus, class_, less, less)

    def take(self, gpus: int, source: str | None) -> None:
        """Count GPUs that were granted to it."""
        self.use += gpus
        if source is not None:
            self.by_source[source] = self.by_source.get(source, 0) + gpus
        if self.whole is not None:
            self.whole.use += gpus

    def promise(self, gpus: int) -> None:
        """Count GPUs that are kept for it."""
        self.promised += gpus
        if self.whole is not None:
            self.whole.promised += gpus

    def propose(self, gpus: int) -> None:
        """Count GPUs that a person is asked for on its behalf."""
        self.pending += gpus
        if self.whole is not None:
            self.whole.pending += gpus


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
            pool: (gpus, sum(self._team_quota(name, pool) for name in policy.teams))
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

    def promise(self, holding: Holding, gpus: int) -> None:
        """Count GPUs that are kept for it; less than nothing when they are kept no more."""
        before = holding.held_back_from_other_teams
        holding.promise(gpus)
        self._hold_back(holding, before)

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
        """Who else has GPUs of the pool held back, and how many, by name."""
        kept = [
            (team.account, team.held_back_from_other_teams)
            for team in self._keepers.get(holding.pool, ())
            if team is not holding.team
        ]
        kept += [(sibling.account, sibling.held_back) for sibling in holding.siblings]
        return sorted((each for each in kept if each[1]), key=lambda each: str(each[0]))

    def teams_that_keep(self, pool: str) -> list[Holding]:
        """The teams, each as one, for which something of the pool may be held back."""
        return self._keepers.get(pool, [])

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
        """Scaled down with the pool when less than all quotas is ready."""
        ready, quotas = self._part_ready.get(pool, (0, 0))
        return gpus * ready // quotas if ready < quotas else gpus
