"""The decision: who starts now, and why the rest waits."""

from __future__ import annotations

from dataclasses import replace

from dagster_gpufair.policy.models import Policy
from dagster_gpufair.scheduling.model import Plan, Start, State, Waiting
from dagster_gpufair.scheduling.order import Standing
from dagster_gpufair.scheduling.queue import Queue
from dagster_gpufair.scheduling.reasons import Reasons
from dagster_gpufair.scheduling.snapshot import Snapshot


def plan(policy: Policy, state: State, now: float) -> Plan:
    """Decide one pass: the best of all waiting requests first, then the next, until none is left.

    Each is judged in the first pool and size of its list in which it can start now: where the rules
    for its account allow it, the GPUs are free beyond what is held back for others, and the nodes can
    give the shape. Everything else waits, for one reason, judged once all starts are known.

    The same inputs give the same plan, whatever the order of their dicts and lists.
    """
    snapshot = Snapshot(policy, state, now)
    queue = Queue(snapshot, state.requests, state.blocked)
    starts: list[Start] = []
    while (turn := queue.next()) is not None:
        request, holding, gpus = turn.request, turn.holding, turn.gpus
        nodes = snapshot.place(holding, gpus, request.gpus_per_node)
        if nodes is None:
            queue.try_next(turn)
            continue
        standing = snapshot.standing(request, holding, gpus)
        starts.append(
            Start(
                request=request,
                pool=holding.pool,
                gpus=gpus,
                nodes=nodes,
                class_=standing.class_,
                saturation=standing.saturation,
                points=standing.points,
            )
        )
        snapshot.take(request, holding, gpus, nodes)
        queue.started(turn)
    return Plan(starts, _waiting(snapshot, queue, _uncordoned(policy, state, starts, now)))


def _waiting(snapshot: Snapshot, queue: Queue, uncordoned: Snapshot | None) -> list[Waiting]:
    """What is left, as it stands after the starts, best first."""
    reasons = Reasons(snapshot, uncordoned)
    waiting: list[tuple[Standing, Waiting]] = []
    for ask, groups in queue.waiting():
        why = reasons.why(ask.sample, ask.blocked)
        holding = snapshot.accounts.holding(ask.account, why.pool)
        for group in groups:
            standing = snapshot.standing(group.head, holding, why.gpus)
            waits = Waiting(
                requests=group.waiting(),
                reason=why.reason,
                message=why.message,
                pool=why.pool,
                class_=standing.class_,
                saturation=standing.saturation,
                points=standing.points,
                ageing=snapshot.ageing(group.head),
            )
            waiting.append((standing, waits))
    waiting.sort(key=lambda pair: pair[0].key)
    return [waits for _, waits in waiting]


def _uncordoned(policy: Policy, state: State, starts: list[Start], now: float) -> Snapshot | None:
    """The same moment if no node were cordoned; None if none is."""
    if not any(state.cordoned.values()):
        return None
    leases = [*state.leases, *(start.lease(now) for start in starts)]
    return Snapshot(policy, replace(state, leases=leases, cordoned={}), now)
