"""A policy in plain English: the rules in force, a sentence each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from dagster_gpufair.policy.access import Access
from dagster_gpufair.policy.models import Policy, Project, Team
from dagster_gpufair.policy.quantities import format_duration, format_gpus, format_moment


def sentences(policy: Policy) -> list[str]:
    """What the policy means, in the order a newcomer asks: pools, teams, tiers, borrowing, order.

    Rules that do not act in this version are left out (`notes` names them).
    """
    access = Access(policy)
    return [
        *_pools(policy),
        *(said for name in policy.teams for said in _team(policy, access, name)),
        *_grants(policy),
        *_windows(policy),
        *_tiers(policy),
        *_borrowing(policy),
        _order(policy),
        *_reservations(policy),
        *_fast_lanes(policy),
        _stopping(policy),
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


def _team(policy: Policy, access: Access, name: str) -> Iterator[str]:
    team = policy.teams[name]
    for pool in policy.pools:
        yield f"{name} {_share(policy, access, name, pool)}."
        for project, its in team.projects.items():
            if its.quota.get(pool):
                yield f"{name}/{project} {_project_share(name, team, its, pool)}."
    tiers = f"may ask for the tier{_s(team.tiers)} {_listed(team.tiers)}"
    if team.code_locations:
        locations = f"the code location{_s(team.code_locations)} {_listed(team.code_locations)}"
        yield f"{name} owns the runs of {locations}, and {tiers}."
    else:
        yield f"{name} {tiers}."
    yield from _ceilings(name, team)


def _share(policy: Policy, access: Access, name: str, pool: str) -> str:
    team = policy.teams[name]
    quota = team.quota.get(pool, 0)
    limit = team.borrow_limit.get(pool)
    borrows = access.may_borrow(name, pool)
    if not quota:
        if borrows:
            return f"is sure of no {pool}, may borrow {_idle(limit)}"
        ways = ["by its grants and windows"] if access.is_given(name, pool) else []
        urgent = access.urgent_tiers(name)
        if urgent:
            ways.append(f"for the tier{_s(urgent)} {_listed(urgent)}")
        return f"may use {pool} only {' and '.join(ways)}" if ways else f"may not use {pool}"
    sure = f"is sure of {format_gpus(quota)} of {format_gpus(policy.pools[pool].capacity)} {pool}"
    more = "may not borrow" if not borrows else f"may borrow {_idle(limit)}"
    if limit and borrows:
        more = f"may borrow {format_gpus(limit)} more"
    lends = "lends nothing" if policy.borrowing.mode == "off" else _lends(team, pool)
    return f"{sure}, {more}, {lends}"


def _project_share(name: str, team: Team, project: Project, pool: str) -> str:
    quota, limit = project.quota[pool], project.borrow_limit.get(pool)
    sure = f"is sure of {format_gpus(quota)} of {name}'s {format_gpus(team.quota[pool])} {pool}"
    more = f"may use {format_gpus(limit)} more" if limit else "may use no more"
    if limit is None:
        more = f"may use more as {name} may"
    return f"{sure}, {more}, {_lends(project, pool)}"


def _lends(account: Team | Project, pool: str) -> str:
    quota = account.quota[pool]
    lent = account.lend_limit.get(pool, quota)
    if lent == 0:
        return "lends nothing"
    return f"lends {'all it does not use' if lent >= quota else f'at most {format_gpus(lent)} of them'}"


def _ceilings(name: str, team: Team) -> Iterator[str]:
    ceilings = team.ceilings
    parts = []
    if ceilings.cpus is not None:
        parts.append(f"{ceilings.cpus:g} CPUs")
    if ceilings.memory_gib is not None:
        parts.append(f"{ceilings.memory_gib:g} GiB of memory")
    if ceilings.gpu_memory_gib is not None:
        parts.append(f"{ceilings.gpu_memory_gib:g} GiB of GPU memory")
    if parts:
        yield f"{name}'s runs that hold GPUs have at most {_listed(parts)} together."


def _grants(policy: Policy) -> Iterator[str]:
    for grant in policy.grants:
        whose = grant.team if grant.project is None else f"{grant.team}/{grant.project}"
        sure = f"{whose} is sure of {format_gpus(grant.gpus)} more {grant.pool}"
        why = f"approved by {_one_line(grant.approved_by)}: {_one_line(grant.reason)}"
        yield f"{sure} {_span(grant.start, grant.until)} ({why})."


def _windows(policy: Policy) -> Iterator[str]:
    for window in policy.windows:
        sure = f"{window.team} is sure of {format_gpus(window.gpus)} more {window.pool}"
        if window.start is not None and window.until is not None:
            time = _span(window.start, window.until)
        else:
            lasts = format_duration(window.duration or 0)
            time = f"for {lasts} from each '{_one_line(window.cron or '')}' (cron, UTC) on"
        yield f"{sure} {time}, lent to nobody."
    if policy.windows:
        yield "Others' work that would reach into such a time starts only if enough is left for it."


def _span(start: datetime, until: datetime) -> str:
    return f"from {format_moment(start)} until {format_moment(until)}"


def _idle(limit: int | None) -> str:
    return "any that are idle" if limit is None else f"up to {format_gpus(limit)} that are idle"


def _tiers(policy: Policy) -> Iterator[str]:
    for name, tier in sorted(policy.tiers.items(), key=lambda item: (-item[1].points, item[0])):
        within = tier.start_within
        promise = "" if within is None else f" and is to start within {format_duration(within)}"
        yield f"{name} counts {tier.points:g} points{promise}."
    urgent = [name for name, tier in policy.tiers.items() if tier.may_preempt]
    if urgent:
        first, bound = ("goes", "is") if len(urgent) == 1 else ("go", "are")
        yield (
            f"{_listed(urgent)} {first} first, whichever team asks, and {bound} not bound by the rules "
            "for borrowing."
        )


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


def _reservations(policy: Policy) -> Iterator[str]:
    after = format_duration(policy.backfill.reserve_after)
    yield (
        "In each pool, GPUs are kept for the first request that a quota covers and that finds no room, "
        f"and for the first borrower's that has waited {after}."
    )
    if policy.backfill.enabled:
        yield "Others may pass it on what it does not need, or gets back in time."
    else:
        yield "Nothing passes it there."


def _fast_lanes(policy: Policy) -> Iterator[str]:
    for pool, lane in policy.fast_lane.items():
        has = format_gpus(policy.pools[pool].capacity)
        most = (
            f"at most {format_gpus(lane.max_gpus)} of them and {format_duration(lane.max_duration)}"
        )
        yield f"{format_gpus(lane.gpus)} of {has} {pool} are kept free for requests of {most}."


def _stopping(policy: Policy) -> str:
    never, mode = "Running work is not stopped for other work", policy.preemption.mode
    return (
        f"{never}."
        if mode == "off"
        else f"{never} in this version, though preemption.mode is {mode}."
    )


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _s(names: Sequence[str]) -> str:
    return "" if len(names) == 1 else "s"


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
