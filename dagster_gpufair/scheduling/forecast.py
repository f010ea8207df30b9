"""About when what waits will start, as far as that follows from what is bounded."""

from __future__ import annotations

from dataclasses import replace

from dagster_gpufair.policy.models import Policy
from dagster_gpufair.scheduling.model import State
from dagster_gpufair.scheduling.plan import plan

STEPS = 25


def forecast(policy: Policy, state: State, now: float, steps: int = STEPS) -> dict[str, float]:
    """When each request starts, by its id, if leases end at their bounds and nobody else comes.

    Bounded leases are ended one after another and the decision is asked again at each of these
    moments, at most ``steps`` times. A request that nothing bounded makes room for has no time, nor
    has one that is blocked from outside. Leases often end before their bound, so that the times are
    rather too late than too early.
    """
    starts_at: dict[str, float] = {}
    for _ in range(steps):
        starts = plan(policy, state, now).starts
        starts_at |= {start.request.id: now for start in starts}
        state = state.after(starts, now)
        ends = [lease.ends for lease in state.leases if lease.ends is not None]
        if not state.requests or not ends:
            break
        now = max(now, min(ends))
        held = [lease for lease in state.leases if lease.ends is None or lease.ends > now]
        state = replace(state, leases=held)
    return starts_at
