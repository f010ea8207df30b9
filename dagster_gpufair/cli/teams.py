"""``gpufair teams``: what each team is sure of, uses, borrows and lends."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from dagster_gpufair.cli.export import gpus, iso, json_option, show_json
from dagster_gpufair.cli.instance import instance_option, opened
from dagster_gpufair.cli.moment import Moment, read_moment
from dagster_gpufair.cli.tables import Column, clock, percent, plain, show, table
from dagster_gpufair.ledger.connect import ledger_of
from dagster_gpufair.policy.models import Policy
from dagster_gpufair.policy.quantities import format_duration, format_gpus
from dagster_gpufair.scheduling.model import Account


@dataclass(frozen=True)
class TeamUse:
    """One team in one pool. GPU amounts in thousandths.

    ``may_borrow`` is how much above its quota it may use in all, None for any. ``borrowed_share`` is
    its part of all that was borrowed in the pool of late, ``weight_share`` its weight's part.
    """

    team: str
    pool: str
    quota: int
    in_use: int
    borrowed: int
    may_borrow: int | None
    lends: int
    borrowed_share: float
    weight_share: float
    waiting: int
    running: int

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
            "borrowed_share": round(self.borrowed_share, 4),
            "weight_share": round(self.weight_share, 4),
            "waiting": self.waiting,
            "running": self.running,
        }


def team_uses(moment: Moment) -> Sequence[TeamUse]:
    """Every team in every pool, also those that the policy does not know any more."""
    waiting = Counter(
        (waiter.request.team, pool) for pool, line in moment.lines.items() for waiter in line
    )
    running = Counter((lease.team, lease.pool) for lease in moment.state.leases)
    known_ones = [(team, pool) for team in moment.policy.teams for pool in moment.policy.pools]
    uses = []
    for team, pool in dict.fromkeys([*known_ones, *sorted({*waiting, *running})]):
        holding = moment.snapshot.accounts.holding(Account(team), pool)
        known = team in moment.policy.teams
        uses.append(
            TeamUse(
                team=team,
                pool=pool,
                quota=holding.quota,
                in_use=holding.use,
                borrowed=moment.borrowed_gpus.get((Account(team), pool), 0),
                may_borrow=_may_borrow(moment.policy, team, pool),
                lends=_lends(moment.policy, team, pool),
                borrowed_share=holding.had if known else 0.0,
                weight_share=holding.due if known else 0.0,
                waiting=waiting[team, pool],
                running=running[team, pool],
            )
        )
    return uses


@click.command()
@instance_option
@json_option
def teams(home: Path | None, as_json: bool) -> None:
    """What each team may use, uses and borrows."""
    with opened(home) as instance, ledger_of(instance).reading() as session:
        moment = read_moment(instance, session, time.time())
    uses = team_uses(moment)
    if as_json:
        show_json({"at": iso(moment.now), "teams": [use.as_json() for use in uses]})
        return
    columns = [
        Column("team"),
        Column("pool"),
        *(
            Column(title, right=True)
            for title in (
                "quota", "uses", "borrowed", "may borrow", "lends", "had of late", "its part",
                "waiting", "running",
            )
        ),
    ]  # fmt: skip
    half_life = format_duration(moment.policy.fair_share.half_life)
    show(
        f"policy v{moment.version.version}, {clock(moment.now, moment.now, seconds=True)}",
        table(columns, [_row(use) for use in uses if use.matters] + _without_any(uses)),
        "",
        "had of late: its part of all GPU-hours borrowed in the pool, which are half forgotten after "
        f"{half_life}; its part: by its weight.",
        "`gpufair policy show` says the rules in sentences.",
    )


def _row(use: TeamUse) -> Sequence[str]:
    return (
        plain(use.team),
        plain(use.pool),
        format_gpus(use.quota),
        format_gpus(use.in_use),
        format_gpus(use.borrowed),
        "any" if use.may_borrow is None else format_gpus(use.may_borrow),
        format_gpus(use.lends),
        percent(use.borrowed_share),
        percent(use.weight_share),
        str(use.waiting),
        str(use.running),
    )


def _without_any(uses: Sequence[TeamUse]) -> list[Sequence[str]]:
    """A row for each team of which there would be none."""
    there = {use.team for use in uses if use.matters}
    missing = dict.fromkeys(use.team for use in uses if use.team not in there)
    return [(plain(team), "-", "0", "0", "0", "", "", "", "", "0", "0") for team in missing]


def _may_borrow(policy: Policy, team: str, pool: str) -> int | None:
    if team not in policy.teams or pool not in policy.pools or policy.borrowing.mode == "off":
        return 0
    return policy.teams[team].borrow_limit.get(pool)


def _lends(policy: Policy, team: str, pool: str) -> int:
    if team not in policy.teams or policy.borrowing.mode == "off":
        return 0
    quota = policy.teams[team].quota.get(pool, 0)
    return min(quota, policy.teams[team].lend_limit.get(pool, quota))
