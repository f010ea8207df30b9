"""About when what waits will start, as far as that follows from what is bounded, or usual."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from dagster_gpufair.policy.in_force import changes
from dagster_gpufair.policy.models import Policy
from dagster_gpufair.scheduling.model import Lease, State
from dagster_gpufair.scheduling.plan import plan

STEPS = 25


def forecast(
    policy: Policy,
    state: State,
    now: float,
    steps: int = STEPS,
    usual_ends: Mapping[str, float] | None = None,
    usual_lengths: Mapping[str, float] | None = None,
) -> dict[str, float]:
    """When each request starts, by its id, if leases end when expected and nobody else comes.

    A lease is expected to end when work like it usually has (``usual_ends``, by lease id), else at its
    bound; what starts later lasts as long as work like it usually does (``usual_lengths``, by request
    id), else until its bound. One after another they are ended, and the decision is asked again at each of
    these moments, and when grants and windows start or end, at most ``steps`` times. A request that nothing
    makes room for has no time, nor has one that is blocked from outside. By bounds alone the times are rather
    too late than too early.
    """
    # What is past has not come true.
    usual_ends = {id: end for id, end in (usual_ends or {}).items() if end > now}
    usual_lengths = usual_lengths or {}

    def ends(lease: Lease) -> float | None:
        usual = usual_ends.get(lease.id)
        if usual is None and lease.id in usual_lengths:
            usual = lease.works_from + usual_lengths[lease.id]
        if usual is None:
            return lease.ends
        return usual if lease.ends is None else min(usual, lease.ends)

    starts_at: dict[str, float] = {}
    for _ in range(steps):
        decided = plan(policy, state, now)
        starts_at |= {start.request.id: now for start in decided.starts}
        state = state.following(decided, now, policy.grace)
        to_come = [end for lease in state.leases if (end := ends(lease)) is not None]
        to_come += changes(policy, now)
        if not state.requests or not to_come:
            break
        now = max(now, min(to_come))
        held = [lease for lease in state.leases if (end := ends(lease)) is None or end > now]
        state = replace(state, leases=held)
    return starts_at
