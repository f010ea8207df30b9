"""Whether a request could ever start under the policy, whoever else runs."""

from __future__ import annotations

from dagster_gpufair.policy.models import Policy
from dagster_gpufair.policy.problems import unknown
from dagster_gpufair.policy.quantities import format_gpus
from dagster_gpufair.scheduling import wording
from dagster_gpufair.scheduling.accounts import Holding, Rights
from dagster_gpufair.scheduling.capacity import Room
from dagster_gpufair.scheduling.model import Request, State
from dagster_gpufair.scheduling.reasons import NO_BORROWING
from dagster_gpufair.scheduling.snapshot import Snapshot

MENDS = {
    "exceeds_pool": "Ask for fewer GPUs or another pool.",
    "no_matching_device": "Ask for another split (gpus_per_node) or another pool.",
    "exceeds_limits": "Ask for fewer GPUs, another pool, or a higher quota or borrow_limit.",
}


def why_never(policy: Policy, request: Request) -> tuple[str, str] | None:
    """The code and the sentence of a request that can never start; None if it can.

    It is tried with the least it accepts in every pool of its list, with nothing running and all
    nodes ready. The code is that of the pool it likes best:

    - ``unknown_team``, ``tier_not_allowed``: the policy has no such team or tier
    - ``unknown_pool``: no pool of its list is in the policy
    - ``exceeds_pool``: the pool has fewer GPUs
    - ``no_matching_device``: the pool's nodes cannot give the shape
    - ``exceeds_limits``: it is more than the quota and what may be borrowed above it
    """
    idle = Snapshot(policy, State(), request.submitted)
    rights, pools = idle.rights(request), idle.pools(request)
    if rights is None:
        if request.team not in policy.teams:
            return "unknown_team", f"{unknown('team', request.team, policy.teams)}."
        return "tier_not_allowed", f"{unknown('tier', request.tier, policy.tiers)}."
    if not pools:
        wanted = request.pools[0] if request.pools else ""
        return "unknown_pool", f"{unknown('pool', wanted, policy.pools)}."
    refusals = []
    for pool in pools:
        holding = idle.accounts.holding(request, pool)
        refusal = _why_never_in(idle, request, rights, holding)
        if refusal is None:
            return None
        refusals.append(refusal)
    code = refusals[0][0]
    return code, f"{'; '.join(message for _, message in refusals)}. {MENDS[code]}"


def _why_never_in(
    idle: Snapshot, request: Request, rights: Rights, holding: Holding
) -> tuple[str, str] | None:
    pool, gpus = holding.pool, request.sizes[-1]
    room = idle.room(pool)
    asks = f"it asks for {wording.asked(request, pool, room)}"
    if gpus > room.ready:
        return "exceeds_pool", f"{asks}, and {pool} has {format_gpus(room.ready)} in all"
    if room.place(gpus, request.gpus_per_node) is None:
        return "no_matching_device", f"{asks}, and {pool} has {_nodes(room)}"
    limits = _limits(idle, rights, holding, gpus)
    return ("exceeds_limits", f"{asks}, and {limits}") if limits else None


def _limits(idle: Snapshot, rights: Rights, holding: Holding, gpus: int) -> str | None:
    """What its account may use at most, where that is less than it asks for."""
    account, quota, limit = holding.account, format_gpus(holding.quota), holding.borrow_limit or 0
    if holding.allowed_class(gpus, rights) is None:
        if rights.barred or not limit:
            return f"{account} may use {quota} there: {rights.barred or NO_BORROWING}"
        most = format_gpus(holding.quota + limit)
        return f"{account} may use {most} there: its quota of {quota} and {format_gpus(limit)} borrowed"
    most_free = idle.free_for(holding)
    if gpus > most_free:
        kept = wording.held_back(idle.accounts.keepers(holding))
        return f"{account} may use {format_gpus(most_free)} there: {kept}"
    return None


def _nodes(room: Room) -> str:
    """``2 nodes of 8``, ``3 nodes of 4 to 8``."""
    sizes = sorted(room.nodes.sizes.values()) if room.nodes else [room.ready]
    least, most = format_gpus(sizes[0]), format_gpus(sizes[-1])
    spread = most if least == most else f"{least} to {most}"
    return f"{len(sizes)} node{'' if len(sizes) == 1 else 's'} of {spread}"
