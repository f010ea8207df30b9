"""A policy in plain English: the rules in force, a sentence each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from itertools import product

from dagster_gpufair.policy.access import Access
from dagster_gpufair.policy.models import Borrowing, Policy, Project, Team
from dagster_gpufair.policy.quantities import ONE_GPU, duration_in_words, format_gpus, format_moment


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
        *_noticed(policy),
        *_stopping(policy),
    ]


def _pools(policy: Policy) -> Iterator[str]:
    for name, pool in policy.pools.items():
        quotas = sum(team.quota.get(name, 0) for team in policy.teams.values())
        where = f" on {_count(len(pool.nodes), 'node')}" if pool.nodes else ""
        shared = "all" if quotas == pool.capacity else format_gpus(quotas) if quotas else "none"
        yield f"{name} has {format_gpus(pool.capacity)} GPUs{where}, {shared} of them in quotas."


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
            return f"is guaranteed no {pool}, and may borrow {_idle(limit, pool)}"
        ways = ["by its grants and windows"] if access.is_given(name, pool) else []
        urgent = access.urgent_tiers(name)
        if urgent:
            ways.append(f"for the tier{_s(urgent)} {_listed(urgent)}")
        return f"may use {pool} only {' and '.join(ways)}" if ways else f"may not use {pool}"
    its = f"is guaranteed {format_gpus(quota)} of {format_gpus(policy.pools[pool].capacity)} {pool}"
    more = "may not borrow" if not borrows else f"may borrow {_idle(limit, pool)}"
    if limit and borrows:
        more = f"may borrow {format_gpus(limit)} more"
    lends = _lends(team, pool) if access.lends(name, pool) else "lends nothing"
    return f"{its}, {more}, and {lends}"


def _project_share(name: str, team: Team, project: Project, pool: str) -> str:
    quota, limit = project.quota[pool], project.borrow_limit.get(pool)
    its = f"is guaranteed {format_gpus(quota)} of {name}'s {format_gpus(team.quota[pool])} {pool}"
    more = f"may use {format_gpus(limit)} more" if limit else "may use no more"
    if limit is None:
        more = f"may use more as {name} may"
    return f"{its}, {more}, and {_lends(project, pool)}"


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
        yield f"All running GPU runs of {name} together use at most {_listed(parts)}."


def _grants(policy: Policy) -> Iterator[str]:
    for grant in policy.grants:
        whose = grant.team if grant.project is None else f"{grant.team}/{grant.project}"
        more = f"{whose} is guaranteed {format_gpus(grant.gpus)} more {grant.pool}"
        why = f"approved by {_one_line(grant.approved_by)}: {_one_line(grant.reason)}"
        yield f"{more} {_span(grant.start, grant.until)} ({why})."


def _windows(policy: Policy) -> Iterator[str]:
    for window in policy.windows:
        more = f"{window.team} is guaranteed {format_gpus(window.gpus)} more {window.pool}"
        if window.start is not None and window.until is not None:
            time = _span(window.start, window.until)
        else:
            lasts = duration_in_words(window.duration or 0)
            time = f"for {lasts} from each '{_one_line(window.cron or '')}' (cron, UTC) on"
        yield f"{more} {time}, and no other team borrows them."
    if policy.windows:
        yield (
            "A run of another team that could still hold GPUs when a window begins starts only if enough "
            "are left for the window."
        )


def _span(start: datetime, until: datetime) -> str:
    return f"from {format_moment(start)} until {format_moment(until)}"


def _idle(limit: int | None, pool: str) -> str:
    return f"any idle {pool}" if limit is None else f"up to {format_gpus(limit)} idle {pool}"


def _tiers(policy: Policy) -> Iterator[str]:
    for name, tier in sorted(policy.tiers.items(), key=lambda item: (-item[1].points, item[0])):
        within = tier.start_within
        promise = "" if within is None else f" and should start within {duration_in_words(within)}"
        yield f"A run of tier {name} counts {tier.points:g} points{promise}."
    urgent = [name for name, tier in policy.tiers.items() if tier.may_preempt]
    if urgent:
        yield (
            f"Runs of the tier{_s(urgent)} {_listed(urgent)} go first, whichever team asks, and the rules "
            "for borrowing do not bind them."
        )


def _borrowing(policy: Policy) -> Iterator[str]:
    yield from _in_pools(policy, partial(_lending, policy))
    for name, team in policy.teams.items():
        if team.borrowing is not None:
            yield from _in_pools(policy, partial(_borrows, policy, name))
    access = Access(policy)
    if not any(access.is_borrowing_on(*each) for each in product(policy.teams, policy.pools)):
        return
    weights = {team.weight for team in policy.teams.values()}
    if len(weights) == 1:
        yield "Teams that want idle GPUs share them equally."
    else:
        shares = _listed([f"{name} {team.weight:g}" for name, team in policy.teams.items()])
        yield f"Teams that want idle GPUs share them by weight: {shares}."


def _lending(policy: Policy, pool: str) -> str:
    rules = policy.borrowing_rules("", pool)
    if rules.mode == "off":
        return "idle GPUs stay with their team: nobody borrows."
    return f"idle GPUs are lent to teams that want more than their quota{_for_what(rules)}."


def _borrows(policy: Policy, team: str, pool: str) -> str:
    rules = policy.borrowing_rules(team, pool)
    if rules.mode == "off":
        return f"team {team} does not borrow."
    return f"team {team} borrows{_for_what(rules) or ' for all its work'}."


def _for_what(rules: Borrowing) -> str:
    said = ""
    if rules.tiers != "all":
        said += f", for the tier{_s(rules.tiers)} {_listed(rules.tiers)} only"
    if rules.kinds != "all":
        said += f", for {_listed(rules.kinds)} only"
    return said


def _in_pools(policy: Policy, say: Callable[[str], str]) -> Iterator[str]:
    """A sentence for all pools, or one for each group of pools of which the same is true; '' is left out."""
    alike: dict[str, list[str]] = {}
    for pool in policy.pools:
        alike.setdefault(say(pool), []).append(pool)
    for said, pools in alike.items():
        if said:
            where = (
                said[0].upper() + said[1:] if len(alike) == 1 else f"In {_listed(pools)}, {said}"
            )
            yield where


def _order(policy: Policy) -> str:
    wait = policy.ordering.wait_points_per_hour
    return f"Each hour of waiting counts {wait:g} points, and runs with more points go first."


def _reservations(policy: Policy) -> Iterator[str]:
    after = duration_in_words(policy.backfill.reserve_after)
    yield (
        "In each pool, GPUs are reserved for the first run within its team's quota that finds no room, "
        f"and for the first borrowing run that has waited {after}."
    )
    if policy.backfill.enabled:
        yield (
            "Other runs may use GPUs that the reservation does not need, or that are free again before "
            "it starts."
        )
    else:
        yield "No run behind it in the queue starts in that pool before it."


def _fast_lanes(policy: Policy) -> Iterator[str]:
    for pool, lane in policy.fast_lane.items():
        has = format_gpus(policy.pools[pool].capacity)
        gpus = f"{format_gpus(lane.max_gpus)} GPU{'s' if lane.max_gpus > ONE_GPU else ''}"
        most = f"at most {gpus} and {duration_in_words(lane.max_duration)}"
        yield f"{format_gpus(lane.gpus)} of {has} {pool} are a fast lane for runs of {most}."


def _noticed(policy: Policy) -> Iterator[str]:
    preemption = policy.preemption
    if not policy.stops_work:
        return
    if preemption.folder is not None:
        where = _one_line(preemption.folder)
        yield f"Runs find their notices and their checkpoints in the folder {where}."
    if preemption.signal is not None:
        yield f"A run that is given notice is sent {preemption.signal}."


def _stopping(policy: Policy) -> Iterator[str]:
    yield from _in_pools(policy, partial(_stops, policy))
    yield from _in_pools(policy, partial(_stops_at_term, policy))


def _stops(policy: Policy, pool: str) -> str:
    rules = policy.stop_rules(pool)
    if rules.mode == "off":
        return "" if _terms(policy, pool) else "no run is stopped for another."
    asked = " once a person has approved it," if rules.mode == "approval" else ""
    least = duration_in_words(rules.min_runtime.total_seconds())
    grace = duration_in_words(rules.grace.total_seconds())
    whom = ""
    if rules.askers != "all":
        whom = f" This is done for the tier{_s(rules.askers)} {_listed(rules.askers)} only."
    return (
        "borrowed work is stopped for work within a quota, and a lower tier for a higher one of the same "
        f"team:{asked} after {grace} of notice, and not before it has run for {least}. It goes on later."
        f"{whom}"
    )


def _stops_at_term(policy: Policy, pool: str) -> str:
    grace = duration_in_words(policy.grace(pool))
    said = []
    for most, teams in _terms(policy, pool).items():
        whose = "" if len(teams) == len(policy.teams) else f" {_listed(teams)}"
        has = "has" if not whose or len(teams) == 1 else "have"
        borrowed = f"what{whose} {has} borrowed for {duration_in_words(most.total_seconds())}"
        said.append(f"{borrowed} is stopped for whoever waits, after {grace} of notice")
    return f"{'; '.join(said)}." if said else ""


def _terms(policy: Policy, pool: str) -> Mapping[timedelta, Sequence[str]]:
    """How long teams may borrow there, and which; without those that are not limited."""
    terms: dict[timedelta, list[str]] = {}
    for team in policy.teams:
        most = policy.borrowing_rules(team, pool).max_duration
        if most is not None:
            terms.setdefault(most, []).append(team)
    return terms


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _s(names: Sequence[str]) -> str:
    return "" if len(names) == 1 else "s"


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
