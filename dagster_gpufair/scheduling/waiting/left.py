"""All that waits after a pass, by group: for which reason, where in line, with which points."""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter

from dagster_gpufair.scheduling.accounts.holding import Holding
from dagster_gpufair.scheduling.model import Class, Plan, Request, Waiting
from dagster_gpufair.scheduling.order import Key, comparison_key
from dagster_gpufair.scheduling.queue.groups import Ask
from dagster_gpufair.scheduling.queue.queue import Queue
from dagster_gpufair.scheduling.snapshot import Snapshot
from dagster_gpufair.scheduling.waiting.reasons import Reasons, Why


def waiting(
    snapshot: Snapshot,
    queue: Queue,
    decided: Plan,
    uncordoned: Snapshot | None,
) -> list[Waiting]:
    """What waits once a pass has decided what starts and who is stopped, best first."""
    reasons = Reasons(snapshot, uncordoned, decided)
    found = [*_promised(snapshot, reasons, decided), *_left(snapshot, queue, reasons, decided)]
    found.sort(key=itemgetter(0))
    return [waits for _, waits in found]


def _left(
    snapshot: Snapshot, queue: Queue, reasons: Reasons, decided: Plan
) -> Iterator[tuple[Key, Waiting]]:
    """What stands in line still, but for what awaits approval."""
    proposed = {each.request.id for each in decided.preemptions if each.awaits_approval}
    for ask, groups in queue.waiting():
        why = reasons.why(ask.sample)
        if ask.blocked is not None:
            why = Why(why.pool, why.gpus, *ask.blocked)
        holding = snapshot.accounts.holding(ask.sample, why.pool)
        class_ = _class_of(snapshot, ask, holding, why.gpus)
        for group in groups:
            requests = group.waiting()
            if proposed:
                requests = [request for request in requests if request.id not in proposed]
            if requests:
                yield _entry(snapshot, requests, holding, class_, why)


def _promised(snapshot: Snapshot, reasons: Reasons, decided: Plan) -> Iterator[tuple[Key, Waiting]]:
    """What this pass has found victims for."""
    for preemption in decided.preemptions:
        request, gpus = preemption.request, preemption.promise.gpus
        holding = snapshot.accounts.holding(request, preemption.promise.pool)
        why = (
            reasons.awaiting_approval(preemption)
            if preemption.awaits_approval
            else reasons.preempting(request, holding, gpus)
        )
        rights = snapshot.rights(request, holding.pool)
        class_ = holding.class_of(gpus, rights is not None and rights.urgent, gpus, gpus)
        yield _entry(snapshot, [request], holding, class_, why)


def _class_of(snapshot: Snapshot, ask: Ask, holding: Holding, gpus: int) -> Class:
    if holding.pool in ask.rights:
        return ask.asker((holding, gpus)).class_
    return snapshot.class_of(ask.sample, holding, gpus)


def _entry(
    snapshot: Snapshot, requests: list[Request], holding: Holding, class_: Class, why: Why
) -> tuple[Key, Waiting]:
    """Requests that are alike, by the first of them."""
    head = requests[0]
    ageing = snapshot.ageing(head)
    points = snapshot.points(head, holding, ageing)
    key = comparison_key(
        class_, holding.saturation, holding.inside, points.score, head.submitted, head.id
    )
    waits = Waiting(
        requests=requests,
        reason=why.reason,
        said=why.said,
        pool=why.pool,
        class_=class_,
        saturation=holding.saturation,
        points=points,
        ageing=ageing,
        blockers=why.blockers,
        inside=holding.inside,
    )
    return key, waits
