"""What a sound policy sets that does not act yet, or that is other than it seems."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Set

from dagster_gpufair.policy.access import Access
from dagster_gpufair.policy.models import Policy, Project, Reclaim, Team
from dagster_gpufair.policy.overlaps import first_overlap, overlaps
from dagster_gpufair.policy.problems import Problem, did_you_mean, dotted, listed, shown
from dagster_gpufair.policy.quantities import format_gpus, format_moment

_Notes = Iterator[tuple[str, str]]
"""Paths with what is worth knowing there."""


def notes_of(policy: Policy, now: float | None = None) -> list[Problem]:
    """What is worth knowing about a sound policy: above all, what it sets that does not act yet.

    ``now`` is when, in seconds since the epoch: by default the present. What is over then counts
    no more.
    """
    notes = [
        (path, f"has no effect in this version: {message}")
        for places, message in _NOT_YET
        for path in places(policy)
    ]
    for rule in (_limits, _access):
        notes += rule(policy)
    now = time.time() if now is None else now
    notes += _lanes(policy, now)
    notes += _overlaps(policy, now)
    return [Problem(path, message, "note") for path, message in notes]


def unknown_locations(
    policy: Policy, in_workspace: Collection[str] | None, seen: Collection[str]
) -> list[Problem]:
    """Notes on code locations that nobody has, which are often misspelt.

    Args:
        in_workspace: the locations of the workspace, or None where it is not known.
        seen: those that GPU runs have come from.
    """
    known = [*(in_workspace or ()), *(name for name in seen if name not in (in_workspace or ()))]
    if not known:
        return []
    nowhere = "no GPU run has come from it yet"
    if in_workspace is not None:
        nowhere = f"it is not in the workspace, and {nowhere}"
    notes = []
    for name, team in policy.teams.items():
        for location in team.code_locations:
            if location not in known:
                hint = did_you_mean(location, known)
                message = f"{shown(location)} may be misspelt: {nowhere}"
                message += f"; {hint}" if hint else ""
                path = dotted("teams", name, "code_locations")
                notes.append(Problem(path, f"{message} (known: {listed(sorted(known))})", "note"))
    return notes


def _when(path: str, is_set: Callable[[Policy], object]) -> Callable[[Policy], Iterable[str]]:
    return lambda policy: [path] if is_set(policy) else []


def _of_teams(key: str, is_set: Callable[[Team], object]) -> Callable[[Policy], Iterable[str]]:
    return lambda policy: [
        f"{dotted('teams', name)}.{key}" for name, team in policy.teams.items() if is_set(team)
    ]


# One row for each setting that is read and checked and does nothing else so far.
_NOT_YET: tuple[tuple[Callable[[Policy], Iterable[str]], str], ...] = (
    (
        _of_teams("ceilings.storage_gib", lambda team: team.ceilings.storage_gib is not None),
        "runs do not declare their storage",
    ),
    (
        _when("reclaim", lambda policy: policy.reclaim != Reclaim()),
        "nothing watches for idle GPUs",
    ),
)


def _limits(policy: Policy) -> _Notes:
    """Limits that limit nothing."""
    access = Access(policy)
    granted = {(grant.team, grant.project, grant.pool) for grant in policy.grants}
    for name, team in policy.teams.items():
        added_to = {pool for pool in policy.pools if access.is_given(name, pool)}
        yield from _lend_limits(("teams", name), team, added_to)
        for project, its in team.projects.items():
            path = ("teams", name, "projects", project)
            added_to = {pool for pool in policy.pools if (name, project, pool) in granted}
            alone = added_to | {pool for pool, quota in its.quota.items() if quota}
            for key in ("borrow_limit", "lend_limit"):
                for pool in getattr(its, key):
                    if pool not in alone:
                        message = (
                            "limits nothing: the project has no quota there, so its runs count as its "
                            "team's"
                        )
                        yield dotted(*path, key, pool), message
            yield from _lend_limits(path, its, added_to | (policy.pools.keys() - alone))


def _lend_limits(path: tuple[str, ...], account: Team | Project, but_in: Set[str]) -> _Notes:
    for pool, lent in account.lend_limit.items():
        quota = account.quota.get(pool, 0)
        if lent > quota and pool not in but_in:
            above = f"is {format_gpus(lent)}, above the quota of {format_gpus(quota)}"
            yield dotted(*path, "lend_limit", pool), f"{above}: all of the quota may be lent"


def _access(policy: Policy) -> _Notes:
    """Teams that can run nothing, and GPUs that a ceiling cannot count."""
    access = Access(policy)
    for name, team in policy.teams.items():
        pools = [pool for pool in policy.pools if access.may_use(name, pool)]
        if not pools:
            why = _why_nothing(policy, access, name)
            yield dotted("teams", name), f"can run nothing so far: {why}"
        unknown = [pool for pool in pools if policy.pools[pool].gpu_memory_gib is None]
        if team.ceilings.gpu_memory_gib is not None and unknown:
            message = f"counts no GPUs of {listed(unknown)}: write the pool's gpu_memory_gib"
            yield dotted("teams", name, "ceilings", "gpu_memory_gib"), message


def _why_nothing(policy: Policy, access: Access, team: str) -> str:
    pools = [pool for pool in policy.pools if access.is_borrowing_on(team, pool)]
    if not pools:
        return "it has no quota, and borrowing is off; give it a quota, or set borrowing.mode: auto"
    if not any(access.has_tiers_that_borrow(team, pool) for pool in pools):
        return (
            "it has no quota, and none of its tiers may borrow; give it a quota, or add one of its tiers "
            "to borrowing.tiers"
        )
    return "it has no quota, and its borrow_limit is 0 in every pool; give it a quota, or raise that limit"


def _lanes(policy: Policy, now: float) -> _Notes:
    """Fast lanes in GPUs that quotas, grants and windows have promised for any work."""
    for pool, lane in policy.fast_lane.items():
        capacity = policy.pools[pool].capacity
        quotas = sum(team.quota.get(pool, 0) for team in policy.teams.values())
        promised, what, beside = quotas, "the quotas", f"quotas of {format_gpus(quotas)}"
        if lane.gpus + quotas <= capacity:
            overlap = first_overlap(policy, pool, now, lane.gpus)
            if overlap is None or overlap.gpus > capacity:
                continue  # Nothing is promised twice, or it is even without the lane.
            promised, what = overlap.gpus, "these"
            beside = (
                f"quotas, grants and windows of {format_gpus(promised)} at "
                f"{format_moment(overlap.moment)} ({overlap.path})"
            )
        together = lane.gpus + promised
        message = (
            f"the lane of {format_gpus(lane.gpus)} and {beside} are {format_gpus(together)} GPUs together, "
            f"and the pool has {format_gpus(capacity)}: {format_gpus(together - capacity)} of {what} serve "
            "small, short runs only"
        )
        yield dotted("fast_lane", pool, "gpus"), message


def _overlaps(policy: Policy, now: float) -> _Notes:
    for overlap in overlaps(policy, now):
        has = format_gpus(policy.pools[overlap.pool].capacity)
        message = (
            f"at {format_moment(overlap.moment)}, quotas, grants and windows of {overlap.pool} are "
            f"{format_gpus(overlap.gpus)} together, and the pool has {has}: not all of them can be used at "
            "once"
        )
        yield overlap.path, message
