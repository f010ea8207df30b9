"""What each team and project is guaranteed, uses, borrows and lends: facts for ``gpufair teams``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dagster_gpufair.cli.moment.current import Moment
from dagster_gpufair.cli.output.json_output import gpus
from dagster_gpufair.policy.access import Access
from dagster_gpufair.policy.in_force import held
from dagster_gpufair.policy.models import Policy
from dagster_gpufair.policy.quantities import ONE_GPU
from dagster_gpufair.scheduling.accounts.holding import Holding
from dagster_gpufair.scheduling.model import Account


@dataclass(frozen=True)
class ProjectUse:
    """One account inside a team in one pool; ``project`` is None for the rest of the team."""

    project: str | None
    quota: int
    in_use: int
    borrowed: int
    may_borrow: int | None

    def as_json(self) -> dict[str, Any]:
        """Under the names of the fields, in GPUs."""
        return {
            "project": self.project,
            "quota": gpus(self.quota),
            "in_use": gpus(self.in_use),
            "borrowed": gpus(self.borrowed),
            "may_borrow": gpus(self.may_borrow),
        }


@dataclass(frozen=True)
class TeamUse:
    """One team in one pool. GPU amounts in thousandths; ``quota`` is with grants and windows in force.

    ``borrowed`` is what it uses over its quota, ``may_borrow`` how much that may be in all, None for
    any. ``lends`` is what of its idle quota others use, ``may_lend`` how much of its quota they may use
    while it is idle. ``borrowed_share`` is its share of the GPU-hours that were recently borrowed in the
    pool, ``weight_share`` the fair share that its weight gives it.
    """

    team: str
    pool: str
    quota: int
    in_use: int
    borrowed: int
    may_borrow: int | None
    lends: int
    may_lend: int
    borrowed_share: float
    weight_share: float
    waiting: int
    running: int
    projects: Sequence[ProjectUse]

    @property
    def matters(self) -> bool:
        """Whether there is anything to say of the team in this pool."""
        return bool(self.quota or self.in_use or self.waiting or self.borrowed_share)

    def as_json(self) -> dict[str, Any]:
        """Under the names of the fields, in GPUs."""
        return {
            "team": self.team,
            "pool": self.pool,
            "quota": gpus(self.quota),
            "in_use": gpus(self.in_use),
            "borrowed": gpus(self.borrowed),
            "may_borrow": gpus(self.may_borrow),
            "lends": gpus(self.lends),
            "may_lend": gpus(self.may_lend),
            "borrowed_share": round(self.borrowed_share, 4),
            "weight_share": round(self.weight_share, 4),
            "waiting": self.waiting,
            "running": self.running,
            "projects": [project.as_json() for project in self.projects],
        }


def team_uses(moment: Moment) -> Sequence[TeamUse]:
    """Every team in every pool, also those that the policy does not know any more."""
    waiting = Counter(
        (waiter.request.team, pool) for pool, line in moment.lines.items() for waiter in line
    )
    running = Counter((lease.team, lease.pool) for lease in moment.state.leases)
    known_ones = [(team, pool) for team in moment.policy.teams for pool in moment.policy.pools]
    lent = {pool: _lent(moment, pool) for pool in moment.policy.pools}
    uses = []
    for team, pool in dict.fromkeys([*known_ones, *sorted({*waiting, *running})]):
        holding = moment.snapshot.accounts.account(Account(team), pool).team
        known = team in moment.policy.teams
        uses.append(
            TeamUse(
                team=team,
                pool=pool,
                quota=holding.quota,
                in_use=holding.use,
                borrowed=holding.overage,
                may_borrow=_may_borrow(moment.policy, holding),
                lends=lent.get(pool, {}).get(team, 0),
                may_lend=_may_lend(moment, holding),
                borrowed_share=holding.had if known else 0.0,
                weight_share=holding.due if known else 0.0,
                waiting=waiting[team, pool],
                running=running[team, pool],
                projects=[_project(one) for one in holding.members],
            )
        )
    return uses


def _project(holding: Holding) -> ProjectUse:
    return ProjectUse(
        project=holding.account.project,
        quota=holding.quota,
        in_use=holding.use,
        borrowed=holding.overage,
        may_borrow=holding.borrow_limit,
    )


def _may_borrow(policy: Policy, holding: Holding) -> int | None:
    team, pool = holding.account.team, holding.pool
    if team not in policy.teams or pool not in policy.pools:
        return 0
    return holding.borrow_limit if policy.borrowing_rules(team, pool).mode != "off" else 0


def _lent(moment: Moment, pool: str) -> dict[str, int]:
    """What of each team's idle quota others use now: all that is borrowed beyond what is in no quota.

    Nobody can say whose idle GPU a borrower has, so each lends its share of them, in whole GPUs where
    all amounts are.
    """
    accounts = moment.snapshot.accounts
    teams_ = [accounts.account(Account(team), pool).team for team in moment.policy.teams]
    in_no_quota = moment.policy.pools[pool].capacity - sum(team.quota for team in teams_)
    idle = [max(0, team.quota - team.use - team.held_back_from_other_teams) for team in teams_]
    all_idle = sum(idle)
    lent = min(all_idle, max(0, moment.borrowed_in(pool) - max(0, in_no_quota)))
    unit = 1 if any(amount % ONE_GPU for amount in (lent, *idle)) else ONE_GPU
    parts, so_far = {}, 0
    for team, amount in zip(teams_, idle, strict=True):
        # Differences of rounded sums, so that the parts add up to what is lent.
        before, after = (
            lent // unit * sum_ // (all_idle or 1) * unit for sum_ in (so_far, so_far + amount)
        )
        parts[team.account.team] = after - before
        so_far += amount
    return parts


def _may_lend(moment: Moment, holding: Holding) -> int:
    """What of its quota others may use: what neither it nor its projects keep, windows apart."""
    policy, team, pool = moment.policy, holding.account.team, holding.pool
    if team not in policy.teams or not Access(policy).lends(team, pool):
        return 0
    rules = policy.teams[team]
    windows = held(policy, moment.now).get((team, pool), 0)
    by_projects = sum(
        max(0, one.quota - rules.projects[one.account.project].lend_limit.get(pool, one.quota))
        for one in holding.members
        if one.account.project is not None
    )
    by_team = min(rules.lend_limit.get(pool, holding.quota), holding.quota - windows)
    return max(0, min(by_team, holding.quota - by_projects))
