"""The moment the ledger is in, as the decision wants it, so that all who ask get the same plan.

`state_from` is the only place that makes a `State` of records: the daemon gives it those that it keeps in
memory, everybody else (`state_of`) reads them from the ledger.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import cast

from sqlalchemy.orm import Session

from dagster_gpufair.ledger import approvals, leases, nodes, promises, requests, usage
from dagster_gpufair.ledger.leases import LeaseRecord
from dagster_gpufair.ledger.requests import RequestRecord
from dagster_gpufair.policy.models import Policy
from dagster_gpufair.scheduling.model import Account, Blocked, Lease, Request, State


def state_of(session: Session, policy: Policy, now: float) -> State:
    """Who waits, who holds what, and what is remembered, at ``now`` (seconds since the epoch)."""
    waiting = requests.waiting(session)
    promised = promises.current(session)
    rejected = approvals.in_state(session, "rejected")
    return state_from(
        policy,
        now,
        waiting=[
            request.to_request(promised.get(request.id), request.id in rejected)
            for request in waiting
        ],
        held=leases.open_leases(session),
        used=usage.used(session, now, policy.fair_share.half_life.total_seconds()),
        source_starts=leases.source_starts(session),
        cordoned=nodes.cordoned_by_pool(session),
        blocked=blocked_of(waiting),
    )


def state_from(
    policy: Policy,
    now: float,
    *,
    waiting: list[Request],
    held: Iterable[LeaseRecord],
    used: Mapping[tuple[Account, str], float],
    source_starts: Mapping[tuple[str, str], float],
    cordoned: Mapping[str, frozenset[str]],
    blocked: Mapping[str, tuple[str, str]],
) -> State:
    """The moment as the decision wants it, from what the ledger knows of it.

    Args:
        waiting: earliest submission first: as the decision takes it fastest.
    """
    return State(
        requests=waiting,
        leases=[
            lease for record in held for lease in where_it_counts(policy, record.to_lease(now))
        ],
        used=used,
        source_starts=source_starts,
        cordoned=cordoned,
        blocked=cast("Mapping[str, Blocked]", blocked),
    )


def where_it_counts(policy: Policy, lease: Lease) -> Iterator[Lease]:
    """A lease in the pools that have its nodes now.

    Nodes move from pool to pool, and pools are renamed, while work goes on on them: its GPUs are in use
    wherever its nodes are. What is on nodes that no pool has any more counts nowhere but for its team.
    """
    pool = policy.pools.get(lease.pool)
    here = pool.nodes or {} if pool else {}
    moved = [node for node in lease.nodes if node not in here]
    if not moved:
        yield lease
        return
    by_pool: dict[str, dict[str, int]] = {}
    for node in moved:
        at = next((name for name, each in policy.pools.items() if node in (each.nodes or {})), None)
        by_pool.setdefault(at or lease.pool, {})[node] = lease.nodes[node]
    stays = {node: gpus for node, gpus in lease.nodes.items() if node not in moved}
    if stays:
        by_pool.setdefault(lease.pool, {}).update(stays)
    for number, (name, on_nodes) in enumerate(sorted(by_pool.items())):
        # One lease, in several pools: only its first part is known by its id.
        id_ = lease.id if number == 0 else f"{lease.id} in {name}"
        cards = {node: here for node, here in lease.cards.items() if node in on_nodes}
        gpus = sum(on_nodes.values())
        yield replace(lease, id=id_, pool=name, gpus=gpus, nodes=on_nodes, cards=cards)


def blocked_of(waiting: Iterable[RequestRecord]) -> dict[str, tuple[str, str]]:
    """What something outside the decision keeps from starting, with reason and sentence."""
    return {
        request.id: (request.blocked_reason, request.blocked_message or "")
        for request in waiting
        if request.blocked_reason is not None
    }
