"""The rules across a policy's keys: names that must exist, sums that must fit, contradictions."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from datetime import timedelta

from dagster_gpufair.policy.cron import cron_trouble
from dagster_gpufair.policy.models import (
    KINDS,
    AllOrNames,
    Grant,
    Policy,
    Pool,
    Project,
    StopRules,
    Team,
    Window,
)
from dagster_gpufair.policy.problems import Problem, dotted, shown, unknown
from dagster_gpufair.policy.quantities import ONE_GPU, format_gpus

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,63}")
_NOTHING = timedelta(0)
_MOST_PARTS = 8


def problems_of(policy: Policy) -> list[Problem]:
    """Everything that keeps a policy from taking effect; empty for a sound one."""
    return [problem for rule in _RULES for problem in rule(policy)]


def _names(policy: Policy) -> Iterator[Problem]:
    """They become tag values and parts of ``team/project``."""
    named: list[tuple[str, ...]] = [("pools", name) for name in policy.pools]
    for pool, its in policy.pools.items():
        named += [("pools", pool, "nodes", name) for name in its.nodes or ()]
    for team, theirs in policy.teams.items():
        named.append(("teams", team))
        named += [("teams", team, "projects", name) for name in theirs.projects]
    named += [("tiers", name) for name in policy.tiers]
    for path in named:
        if not _NAME.fullmatch(path[-1]):
            message = (
                "is not a valid name; use 1 to 63 letters (a-z, A-Z), digits, '_', '-' and '.'"
            )
            yield Problem(dotted(*path), message)


def _pools(policy: Policy) -> Iterator[Problem]:
    if not policy.pools:
        yield Problem("pools", "is empty; a policy needs at least one pool")
    for name, pool in policy.pools.items():
        yield from _pool(dotted("pools", name), pool)


def _pool(path: str, pool: Pool) -> Iterator[Problem]:
    if pool.nodes is not None and pool.gpus is not None:
        yield Problem(path, "has both nodes and gpus; delete gpus, which is the sum over the nodes")
    elif pool.nodes is None and pool.gpus is None:
        yield Problem(path, "has no GPUs; give it nodes: {name: gpus}, or gpus: a number")
    elif pool.capacity == 0:
        yield Problem(path, "has 0 GPUs; give it some, or delete the pool")
    for node, gpus in (pool.nodes or {}).items():
        if gpus % ONE_GPU:
            message = f"is {format_gpus(gpus)}, and a node has whole GPUs only"
            yield Problem(f"{path}.{dotted('nodes', node)}", message)


def _tiers(policy: Policy) -> Iterator[Problem]:
    for name, tier in policy.tiers.items():
        if tier.may_preempt and tier.preemptible != "never":
            yield Problem(
                dotted("tiers", name, "preemptible"),
                f"must be never, not '{tier.preemptible}': a tier with may_preempt: true stops "
                "others and is not stopped itself",
            )
        if tier.start_within == _NOTHING:
            message = "must be longer than 0; leave it out to promise no start time"
            yield Problem(dotted("tiers", name, "start_within"), message)


def _teams(policy: Policy) -> Iterator[Problem]:
    if not policy.teams:
        yield Problem("teams", "is empty; a policy needs at least one team")
    for name, team in policy.teams.items():
        yield from _known_pools(policy, ("teams", name), team)
        for project, its in team.projects.items():
            yield from _known_pools(policy, ("teams", name, "projects", project), its)
        yield from _team_tiers(policy, name, team)


def _known_pools(
    policy: Policy, path: tuple[str, ...], account: Team | Project
) -> Iterator[Problem]:
    # That there are no pools at all is an error of its own.
    for key in ("quota", "borrow_limit", "lend_limit") if policy.pools else ():
        for pool in getattr(account, key):
            if pool not in policy.pools:
                yield Problem(dotted(*path, key, pool), unknown("pool", pool, policy.pools))


def _team_tiers(policy: Policy, name: str, team: Team) -> Iterator[Problem]:
    path = dotted("teams", name, "tiers")
    if not team.tiers:
        yield Problem(path, f"is empty; list the team's tiers (known: {', '.join(policy.tiers)})")
    for tier in team.tiers:
        if tier not in policy.tiers:
            message = unknown("tier", tier, policy.tiers)
            if "tiers" not in team.model_fields_set:
                message += "; it is there by default, so list the team's tiers"
            yield Problem(path, message)


def _code_locations(policy: Policy) -> Iterator[Problem]:
    owners: dict[str, str] = {}
    for name, team in policy.teams.items():
        path = dotted("teams", name, "code_locations")
        for location in team.code_locations:
            if not location.strip():
                yield Problem(path, "has an empty name in it; delete it")
            elif owners.setdefault(location, name) != name:
                yield Problem(
                    path,
                    f"{shown(location)} belongs to team {owners[location]} already; a code location "
                    "has one team",
                )


def _quotas(policy: Policy) -> Iterator[Problem]:
    for pool, quotas in _by_pool(policy.teams).items():
        # A pool that is unknown or empty is an error of its own.
        room = policy.pools[pool].capacity if pool in policy.pools else 0
        if room:
            yield from _fits("teams", pool, quotas, room, "the pool")
    for name, team in policy.teams.items():
        for pool, quotas in _by_pool(team.projects).items():
            if pool in policy.pools:
                path = dotted("teams", name, "projects")
                yield from _fits(path, pool, quotas, team.quota.get(pool, 0), "the team")


def _by_pool(accounts: Mapping[str, Team] | Mapping[str, Project]) -> dict[str, dict[str, int]]:
    quotas: dict[str, dict[str, int]] = {}
    for name, account in accounts.items():
        for pool, gpus in account.quota.items():
            quotas.setdefault(pool, {})[name] = gpus
    return quotas


def _fits(
    path: str, pool: str, quotas: Mapping[str, int], room: int, whole: str
) -> Iterator[Problem]:
    excess = sum(quotas.values()) - room
    if excess <= 0:
        return
    parts = sorted(((quota, name) for name, quota in quotas.items() if quota), reverse=True)
    named = {name for _, name in parts[:_MOST_PARTS]}
    summed = " + ".join(f"{name} {format_gpus(quotas[name])}" for name in quotas if name in named)
    others = parts[_MOST_PARTS:]
    if others:
        summed += f" + {len(others)} others {format_gpus(sum(quota for quota, _ in others))}"
    if len(parts) > 1:
        summed += f" = {format_gpus(sum(quotas.values()))}"
    which = "it" if len(parts) == 1 else "one" if parts[0][0] >= excess else "them"
    together = " together" if which == "them" else ""
    advice = f"lower {which} by {format_gpus(excess)}{together}"
    message = f"{summed}, {whole} has {format_gpus(room)}; {advice}"
    yield Problem(f"{path}: quota of {pool}", message)


def _borrowing(policy: Policy) -> Iterator[Problem]:
    sections = [("borrowing", policy.borrowing)]
    for under, named in (("pools", policy.pools), ("teams", policy.teams)):
        for name, each in named.items():
            if each.borrowing is not None:
                sections.append((dotted(under, name, "borrowing"), each.borrowing))
    for path, borrowing in sections:
        off = f"write all, or set {path}.mode: off"
        yield from _known_names(f"{path}.kinds", "kind", borrowing.kinds, KINDS, off)
        yield from _known_names(f"{path}.tiers", "tier", borrowing.tiers, policy.tiers, off)


def _preemption(policy: Policy) -> Iterator[Problem]:
    sections: list[tuple[str, StopRules]] = [("preemption", policy.preemption)]
    for name, pool in policy.pools.items():
        if pool.preemption is not None:
            sections.append((dotted("pools", name, "preemption"), pool.preemption))
    for path, rules in sections:
        off = f"write all, or set {path}.mode: off"
        yield from _known_names(f"{path}.askers", "tier", rules.askers, policy.tiers, off)


def _known_names(
    path: str, what: str, chosen: AllOrNames, known: Collection[str], instead: str
) -> Iterator[Problem]:
    if not chosen:
        yield Problem(path, f"is empty; {instead}")
    for name in chosen if chosen != "all" else ():
        if name not in known:
            yield Problem(path, unknown(what, name, known))


def _fair_share(policy: Policy) -> Iterator[Problem]:
    if policy.fair_share.half_life == _NOTHING:
        message = "must be longer than 0; set strength: 0 to let past borrowing not count"
        yield Problem("fair_share.half_life", message)


def _fast_lane(policy: Policy) -> Iterator[Problem]:
    for pool, lane in policy.fast_lane.items():
        path = dotted("fast_lane", pool)
        if pool not in policy.pools:
            yield Problem(path, unknown("pool", pool, policy.pools))
        elif lane.gpus > policy.pools[pool].capacity > 0:
            has = format_gpus(policy.pools[pool].capacity)
            yield Problem(f"{path}.gpus", f"is {format_gpus(lane.gpus)}, and the pool has {has}")
        if lane.max_gpus > lane.gpus:
            asked, has = format_gpus(lane.max_gpus), format_gpus(lane.gpus)
            yield Problem(f"{path}.max_gpus", f"is {asked}, and the lane has {has}")
        for key, size in (("gpus", lane.gpus), ("max_gpus", lane.max_gpus)):
            if size == 0:
                yield Problem(f"{path}.{key}", "must be above 0; delete the lane to have none")
        if lane.max_duration == _NOTHING:
            yield Problem(f"{path}.max_duration", "must be longer than 0")


def _grants(policy: Policy) -> Iterator[Problem]:
    for index, grant in enumerate(policy.grants):
        path = dotted("grants", index)
        yield from _extra(policy, path, grant)
        if grant.project is not None and grant.team in policy.teams:
            projects = policy.teams[grant.team].projects
            if grant.project not in projects:
                yield Problem(f"{path}.project", unknown("project", grant.project, projects))
        for key, asks in (("approved_by", "who approved it"), ("reason", "what it is for")):
            if not getattr(grant, key).strip():
                yield Problem(f"{path}.{key}", f"is empty; write {asks}")


def _windows(policy: Policy) -> Iterator[Problem]:
    for index, window in enumerate(policy.windows):
        path = dotted("windows", index)
        yield from _extra(policy, path, window)
        yield from _window_times(path, window)


def _extra(policy: Policy, path: str, extra: Grant | Window) -> Iterator[Problem]:
    """What grants and windows have in common: GPUs of a pool, for a team, for a time."""
    if extra.team not in policy.teams:
        yield Problem(f"{path}.team", unknown("team", extra.team, policy.teams))
    if extra.pool not in policy.pools:
        yield Problem(f"{path}.pool", unknown("pool", extra.pool, policy.pools))
    elif extra.gpus > policy.pools[extra.pool].capacity > 0:
        has = format_gpus(policy.pools[extra.pool].capacity)
        yield Problem(f"{path}.gpus", f"is {format_gpus(extra.gpus)}, and the pool has {has}")
    if extra.gpus == 0:
        yield Problem(f"{path}.gpus", "must be above 0")
    if extra.start is not None and extra.until is not None and extra.start >= extra.until:
        message = (
            f"is {extra.until.isoformat()}, which is not after from ({extra.start.isoformat()})"
        )
        yield Problem(f"{path}.until", message)


def _window_times(path: str, window: Window) -> Iterator[Problem]:
    given = [
        part is not None for part in (window.start, window.until, window.cron, window.duration)
    ]
    if given not in ([True, True, False, False], [False, False, True, True]):
        yield Problem(path, "needs from and until, or cron and duration")
    trouble = None if window.cron is None else cron_trouble(window.cron)
    if trouble:
        yield Problem(f"{path}.cron", trouble)
    if window.duration == _NOTHING:
        yield Problem(f"{path}.duration", "must be longer than 0")


_RULES = (
    _names,
    _pools,
    _tiers,
    _teams,
    _code_locations,
    _quotas,
    _borrowing,
    _preemption,
    _fair_share,
    _fast_lane,
    _grants,
    _windows,
)
