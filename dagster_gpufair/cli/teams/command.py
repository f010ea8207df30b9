"""``gpufair teams``: what each team and project is sure of, uses, borrows and lends."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import RenderableType

from dagster_gpufair.cli.instance.opening import instance_option, opened
from dagster_gpufair.cli.moment.current import Moment, read_moment
from dagster_gpufair.cli.output.json_output import gpus, iso, json_option, show_json
from dagster_gpufair.cli.output.tables import Column, clock, percent, plain, show, table
from dagster_gpufair.cli.teams.ceilings import CeilingUse, ceiling_uses
from dagster_gpufair.ledger.connect import ledger_of
from dagster_gpufair.policy.in_force import held
from dagster_gpufair.policy.models import Policy
from dagster_gpufair.policy.quantities import ONE_GPU, format_duration, format_gpus
from dagster_gpufair.scheduling import wording
from dagster_gpufair.scheduling.holding import Holding
from dagster_gpufair.scheduling.model import Account

REST = "(rest)"
"""How the part of a team is named that is none of its projects."""


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

    ``borrowed`` is what it uses above its quota, ``may_borrow`` how much that may be in all, None for
    any. ``lends`` is what of its idle quota others use, ``may_lend`` how much of its quota they may use
    while it is idle. ``borrowed_share`` is its part of all that was borrowed in the pool of late,
    ``weight_share`` its weight's part.
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


@click.command()
@instance_option
@json_option
def teams(home: Path | None, as_json: bool) -> None:
    """What each team and project may use, uses and borrows."""
    with opened(home) as instance, ledger_of(instance).reading() as session:
        moment = read_moment(instance, session, time.time())
    uses, ceilings = team_uses(moment), ceiling_uses(moment)
    if as_json:
        show_json(
            {
                "at": iso(moment.now),
                "teams": [use.as_json() for use in uses],
                "ceilings": [use.as_json() for use in ceilings],
            }
        )
        return
    columns = [
        Column("team"),
        Column("pool"),
        *(
            Column(title, right=True)
            for title in (
                "quota", "uses", "borrowed", "may borrow", "lends", "may lend", "had of late",
                "its part", "waiting", "running",
            )
        ),
    ]  # fmt: skip
    half_life = format_duration(moment.policy.fair_share.half_life)
    rows = [row for use in uses if use.matters for row in _rows(use)]
    show(
        f"policy v{moment.version.version}, {clock(moment.now, moment.now, seconds=True)}",
        table(columns, [*rows, *_without_any(uses)]),
        *_ceilings(ceilings),
        "",
        "quota: with grants and windows in force. borrowed: what is used above it; of a project, above "
        "its own. lends: what is idle of it and others use, shared out among all teams with idle quota.",
        "had of late: its part of all GPU-hours that ran beyond quotas in the pool, which are half "
        f"forgotten after {half_life}; its part: by its weight.",
        "`gpufair policy show` says the rules in sentences.",
    )


def _rows(use: TeamUse) -> Iterator[Sequence[str]]:
    yield (
        plain(use.team),
        plain(use.pool),
        format_gpus(use.quota),
        format_gpus(use.in_use),
        format_gpus(use.borrowed),
        _any(use.may_borrow),
        wording.part(use.lends),
        wording.part(use.may_lend),
        percent(use.borrowed_share),
        percent(use.weight_share),
        str(use.waiting),
        str(use.running),
    )
    for one in use.projects:
        yield (
            plain(f"  {use.team}/{one.project or REST}"),
            plain(use.pool),
            format_gpus(one.quota),
            format_gpus(one.in_use),
            format_gpus(one.borrowed),
            _any(one.may_borrow),
            *("",) * 6,
        )


def _any(limit: int | None) -> str:
    return "any" if limit is None else format_gpus(limit)


def _without_any(uses: Sequence[TeamUse]) -> list[Sequence[str]]:
    """A row for each team of which there would be none."""
    there = {use.team for use in uses if use.matters}
    missing = dict.fromkeys(use.team for use in uses if use.team not in there)
    return [(plain(team), "-", "0", "0", "0", *("",) * 5, "0", "0") for team in missing]


def _ceilings(uses: Sequence[CeilingUse]) -> Iterator[RenderableType]:
    if uses:
        columns = (Column("ceiling of"), Column("what"), Column("used", right=True), Column("most"))
        yield ""
        yield table(
            columns,
            [(plain(use.team), use.what, f"{use.used:g}", f"{use.most:g}") for use in uses],
        )


def _project(holding: Holding) -> ProjectUse:
    return ProjectUse(
        project=holding.account.project,
        quota=holding.quota,
        in_use=holding.use,
        borrowed=holding.overage,
        may_borrow=holding.borrow_limit,
    )


def _may_borrow(policy: Policy, holding: Holding) -> int | None:
    known = holding.account.team in policy.teams and holding.pool in policy.pools
    return holding.borrow_limit if known and policy.borrowing.mode != "off" else 0


def _lent(moment: Moment, pool: str) -> dict[str, int]:
    """What of each team's idle quota others use now: all that is borrowed beyond what is in no quota.

    Nobody can say whose idle GPU a borrower has, so each lends its part of them, in whole GPUs where
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
    if team not in policy.teams or policy.borrowing.mode == "off":
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
