"""Whether a request could ever start under the policy, whoever else runs."""

from __future__ import annotations

from typing import NamedTuple

from dagster_gpufair.policy.in_force import upcoming
from dagster_gpufair.policy.models import Policy
from dagster_gpufair.policy.problems import shown, unknown
from dagster_gpufair.policy.quantities import format_gpus
from dagster_gpufair.scheduling.accounts.asker import Asker
from dagster_gpufair.scheduling.model import Request, State
from dagster_gpufair.scheduling.snapshot import Snapshot
from dagster_gpufair.scheduling.space.room import Room
from dagster_gpufair.scheduling.waiting import words
from dagster_gpufair.scheduling.waiting.reasons import NO_BORROWING

WHAT_HELPS = {
    "exceeds_pool": "Ask for fewer GPUs or another pool.",
    "no_matching_device": "Ask for another split (gpus_per_node) or another pool.",
    "exceeds_limits": "Ask for less, another pool, or a higher quota or limit.",
}


def why_never(policy: Policy, request: Request) -> tuple[str, str] | None:
    """The code and the sentence of a request that can never start; None if it can.

    It is tried with the least it accepts in every pool of its list, with nothing running and all
    nodes ready; now, and when any of its team's grants or windows starts. The code is that of the pool
    it likes best:

    - ``unknown_team``, ``tier_not_allowed``: the policy has no such team or tier
    - ``unknown_pool``: no pool of its list is in the policy
    - ``exceeds_pool``: the pool has fewer GPUs
    - ``no_matching_device``: the pool's nodes cannot give the shape
    - ``exceeds_limits``: it is more than the quota and what may be borrowed above it, than what others
      leave to it, or than a ceiling of its team
    """
    # A grant or a window of another team lasts for a time only.
    own = {
        "windows": [window for window in policy.windows if window.team == request.team],
        "grants": [grant for grant in policy.grants if grant.team == request.team],
    }
    lasting = policy.model_copy(update=own)
    refusal = _why_not_at(lasting, request, request.submitted)
    if refusal is None or refusal[0] != "exceeds_limits":
        return refusal
    for later in _extra_starts(lasting, request.team, request.submitted):
        if _why_not_at(lasting, request, later) is None:
            return None
    return refusal


def why_invalid(policy: Policy, request: Request) -> str | None:
    """What is wrong with a request that could start, and that no run may make; None if nothing is.

    A project is one of its team's: a name that nobody wrote down would be counted nowhere, and a typing error
    never found. And a split over nodes has no rest.
    """
    team, project = policy.teams.get(request.team), request.project
    if team is not None and not team.projects and project is not None:
        return (
            f"team {request.team} has no projects, and the run names {shown(project)}. Leave the project "
            f"out, or ask the platform team to add it to teams.{request.team}.projects: it needs no quota."
        )
    if team is not None and project is not None and project not in team.projects:
        return f"{unknown(f'project of team {request.team}', project, team.projects)}."
    part = request.gpus_per_node
    for gpus in request.sizes:
        if part and gpus % part:
            return (
                f"it asks for {words.in_gpus(gpus)}, which cannot be split into {format_gpus(part)} on "
                "each node: make gpus a multiple of gpus_per_node."
            )
    return None


class Allowance(NamedTuple):
    """What quotas and limits allow a request where nothing runs.

    ``at`` is from when on it may start in one of its pools (None: never); ``most`` is how many GPUs of a
    pool may start now without borrowing.
    """

    at: float | None
    most: int


def allowance(policy: Policy, request: Request, pool: str, now: float) -> Allowance:
    """When the rules let it start, whatever runs, and the most they would let start in a pool now."""
    starts = sorted(_extra_starts(policy, request.team, now))
    at = next((at for at in (now, *starts) if _rules_allow(policy, request, at)), None)
    idle = Snapshot(policy, State(), now)
    rights, holding = idle.rights(request, pool), idle.accounts.holding(request, pool)
    if rights is None:
        return Allowance(at, 0)
    quotas = (holding.team.quota, holding.quota)
    allowed = (gpus for gpus in quotas if holding.allowed_class(gpus, rights) is not None)
    return Allowance(at, next(allowed, 0))


def _rules_allow(policy: Policy, request: Request, now: float) -> bool:
    """Whether quota and borrowing leave it any of its pools then, were everything idle."""
    idle = Snapshot(policy, State(), now)
    return any(
        idle.accounts.holding(request, pool).allowed_class(request.sizes[-1], rights) is not None
        for pool in idle.pools(request)
        if (rights := idle.rights(request, pool)) is not None
    )


def _extra_starts(policy: Policy, team: str, now: float) -> set[float]:
    """When the team will have more than now."""
    grants = {
        grant.start.timestamp()
        for grant in policy.grants
        if grant.team == team and grant.start.timestamp() > now
    }
    return grants | {window.start for window in upcoming(policy, now)}


def _why_not_at(policy: Policy, request: Request, now: float) -> tuple[str, str] | None:
    """Why it could not start then, were everything idle."""
    idle = Snapshot(policy, State(), now)
    pools = idle.pools(request)
    if request.team not in policy.teams:
        return "unknown_team", f"{unknown('team', request.team, policy.teams)}."
    if request.tier not in policy.tiers:
        return "tier_not_allowed", f"{unknown('tier', request.tier, policy.tiers)}."
    if not pools:
        wanted = request.pools[0] if request.pools else ""
        return "unknown_pool", f"{unknown('pool', wanted, policy.pools)}."
    refusals = []
    for pool in pools:
        asker = idle.asker(request, idle.accounts.holding(request, pool), request.sizes[-1])
        assert asker is not None
        refusal = _why_never_in(idle, asker)
        if refusal is None:
            return None
        refusals.append(refusal)
    code = refusals[0][0]
    return code, f"{'; '.join(message for _, message in refusals)}. {WHAT_HELPS[code]}"


def _why_never_in(idle: Snapshot, asker: Asker) -> tuple[str, str] | None:
    request, pool, gpus = asker.request, asker.pool, asker.gpus
    room = idle.room(pool)
    asks = f"it asks for {words.asked(request, pool, room)}"
    if gpus > room.ready:
        return "exceeds_pool", f"{asks}, and {pool} has {words.in_gpus(room.ready)} in all"
    if room.place(gpus, request.gpus_per_node) is None:
        return "no_matching_device", f"{asks}, and {pool} has {_nodes(room)}"
    limits = _limits(idle, asker)
    return ("exceeds_limits", f"{asks}, and {limits}") if limits else None


def _limits(idle: Snapshot, asker: Asker) -> str | None:
    """What its account may use at most, where that is less than it asks for."""
    holding, rights, gpus = asker.holding, asker.rights, asker.gpus
    if holding.allowed_class(gpus, rights) is None:
        limited = holding if rights.barred else holding.limited_by(gpus)
        own, limit = format_gpus(limited.quota), limited.borrow_limit or 0
        if rights.barred or not limit:
            has = f"may use at most its quota of {own}" if limited.quota else "has no quota"
            return f"{limited} {has}, and {rights.barred or NO_BORROWING}"
        most, quota = format_gpus(limited.quota + limit), f"a quota of {own}"
        return (
            f"{limited} may use at most {most} ({quota if limited.quota else 'no quota'} and a borrow "
            f"limit of {format_gpus(limit)})"
        )
    most_free = idle.left_for(asker)
    if gpus > most_free:
        kept = [words.held_back(keepers)] if (keepers := idle.accounts.keepers(holding)) else []
        room = idle.room(asker.pool)
        if room.lane is not None and room.lane_left:
            kept.append(words.fast_lane(room.lane_left, room.lane))
        most = f"at most {words.part(most_free)}" if most_free > 0 else "none"
        return f"{holding} may use {most}: {', and '.join(kept)}"
    exceeded = idle.ceilings.exceeded(asker.request, asker.pool, gpus)
    if exceeded is not None:
        return f"{words.ceiling(asker.request.team, exceeded)}: this run needs {exceeded.asked:g}"
    return None


def _nodes(room: Room) -> str:
    """``2 nodes of 8 GPUs``, ``3 nodes of 4 to 8 GPUs``."""
    sizes = sorted(room.nodes.sizes.values())
    least, most = format_gpus(sizes[0]), format_gpus(sizes[-1])
    spread = words.in_gpus(sizes[-1]) if least == most else f"{least} to {most} GPUs"
    return f"{len(sizes)} node{'' if len(sizes) == 1 else 's'} of {spread}"
