"""A policy in plain English: the rules in force, a sentence each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dagster_gpufair.policy.models import Policy, Team
from dagster_gpufair.policy.quantities import format_duration, format_gpus


def sentences(policy: Policy) -> list[str]:
    """What the policy means, in the order a newcomer asks: pools, teams, tiers, borrowing, order.

    Rules that do not act in this version are left out (`notes` names them).
    """
    return [
        *_pools(policy),
        *(said for name, team in policy.teams.items() for said in _team(policy, name, team)),
        *_tiers(policy),
        *_borrowing(policy),
        _order(policy),
        "Running work is not stopped for other work.",
    ]


def _pools(policy: Policy) -> Iterator[str]:
    for name, pool in policy.pools.items():
        quotas = sum(team.quota.get(name, 0) for team in policy.teams.values())
        where = f" on {_count(len(pool.nodes), 'node')}" if pool.nodes else ""
        rest = format_gpus(pool.capacity - quotas)
        shared = (
            "all in quotas" if rest == "0" else f"{format_gpus(quotas)} in quotas, {rest} in none"
        )
        yield f"{name} has {format_gpus(pool.capacity)} GPUs{where}: {shared}."


def _team(policy: Policy, name: str, team: Team) -> Iterator[str]:
    for pool in policy.pools:
        yield f"{name} {_share(policy, team, pool)}."
    tiers = f"may ask for the tier{_s(team.tiers)} {_listed(team.tiers)}"
    if team.code_locations:
        locations = f"the code location{_s(team.code_locations)} {_listed(team.code_locations)}"
        yield f"{name} owns the runs of {locations}, and {tiers}."
    else:
        yield f"{name} {tiers}."


def _share(policy: Policy, team: Team, pool: str) -> str:
    quota = team.quota.get(pool, 0)
    limit = team.borrow_limit.get(pool)
    borrows = policy.borrowing.mode != "off" and limit != 0
    if not quota:
        if not borrows:
            return f"may not use {pool}"
        return f"is sure of no {pool}, may borrow {_idle(limit)}"
    sure = f"is sure of {format_gpus(quota)} of {format_gpus(policy.pools[pool].capacity)} {pool}"
    more = "may not borrow" if not borrows else f"may borrow {_idle(limit)}"
    if limit and borrows:
        more = f"may borrow {format_gpus(limit)} more"
    lent = team.lend_limit.get(pool, quota)
    if policy.borrowing.mode == "off" or lent == 0:
        return f"{sure}, {more}, lends nothing"
    lends = "all it does not use" if lent >= quota else f"at most {format_gpus(lent)} of them"
    return f"{sure}, {more}, lends {lends}"


def _idle(limit: int | None) -> str:
    return "any that are idle" if limit is None else f"up to {format_gpus(limit)} that are idle"


def _tiers(policy: Policy) -> Iterator[str]:
    for name, tier in sorted(policy.tiers.items(), key=lambda item: (-item[1].points, item[0])):
        within = tier.start_within
        promise = "" if within is None else f" and is to start within {format_duration(within)}"
        yield f"{name} counts {tier.points:g} points{promise}."


def _borrowing(policy: Policy) -> Iterator[str]:
    borrowing = policy.borrowing
    if borrowing.mode == "off":
        yield "Idle GPUs stay with their team: nobody borrows."
        return
    who = "Idle GPUs are lent to teams that want more than their quota"
    if borrowing.tiers != "all":
        who += f", for the tier{_s(borrowing.tiers)} {_listed(borrowing.tiers)} only"
    if borrowing.kinds != "all":
        who += f", for {_listed(borrowing.kinds)} only"
    yield f"{who}."
    weights = {team.weight for team in policy.teams.values()}
    if len(weights) == 1:
        yield "They are shared equally among the teams that want them."
    else:
        shares = _listed([f"{name} {team.weight:g}" for name, team in policy.teams.items()])
        yield f"They are shared by weight among the teams that want them: {shares}."


def _order(policy: Policy) -> str:
    wait = policy.ordering.wait_points_per_hour
    return f"Each hour of waiting counts {wait:g} points; more points come first."


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _s(names: Sequence[str]) -> str:
    return "" if len(names) == 1 else "s"


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
