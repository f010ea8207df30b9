"""The decision: who starts now, and why the rest waits."""

from __future__ import annotations

from dataclasses import replace
from operator import itemgetter

from dagster_gpufair.policy.models import Policy
from dagster_gpufair.scheduling.model import Plan, Start, State, Waiting
from dagster_gpufair.scheduling.order import Key, comparison_key
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
    waiting: list[tuple[Key, Waiting]] = []
    for ask, groups in queue.waiting():
        why = reasons.why(ask.sample)
        reason, message = ask.blocked or (why.reason, why.message)
        holding = snapshot.accounts.holding(ask.account, why.pool)
        class_, saturation = snapshot.class_of(ask.sample, holding, why.gpus), holding.saturation
        for group in groups:
            head, ageing = group.head, snapshot.ageing(group.head)
            points = snapshot.points(head, holding, ageing)
            key = comparison_key(class_, saturation, points.score, head.submitted, head.id)
            waits = Waiting(
                group.waiting(), reason, message, why.pool, class_, saturation, points, ageing
            )
            waiting.append((key, waits))
    waiting.sort(key=itemgetter(0))
    return [waits for _, waits in waiting]


def _uncordoned(policy: Policy, state: State, starts: list[Start], now: float) -> Snapshot | None:
    """The same moment if no node were cordoned; None if none is."""
    if not any(state.cordoned.values()):
        return None
    leases = [*state.leases, *(start.lease(now) for start in starts)]
    return Snapshot(policy, replace(state, leases=leases, cordoned={}), now)
