"""The moment the ledger is in, as the decision wants it, so that all who ask get the same plan."""

from __future__ import annotations

from sqlalchemy.orm import Session

from dagster_gpufair.ledger import leases, nodes, requests, usage
from dagster_gpufair.policy.models import Policy
from dagster_gpufair.scheduling.model import State


def state_of(session: Session, policy: Policy, now: float) -> State:
    """Who waits, who holds what, and what is remembered, at ``now`` (seconds since the epoch)."""
    waiting = requests.waiting(session)
    return State(
        requests=[request.to_request() for request in waiting],
        leases=[lease.to_lease() for lease in leases.open_leases(session)],
        used=usage.used(session, now, policy.fair_share.half_life.total_seconds()),
        source_starts=leases.source_starts(session),
        cordoned=nodes.cordoned_by_pool(session),
        blocked={
            request.id: (request.blocked_reason, request.blocked_message or "")
            for request in waiting
            if request.blocked_reason is not None
        },
    )
