"""Writing what a pass has decided, in one transaction: grants, promises, notices, withdrawals, renewals.

What is written here is meant; it is acted on afterwards, and can be done again by whoever comes next.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from sqlalchemy.orm import Session

from dagster_gpufair.engine.book import Book
from dagster_gpufair.engine.writer_turn import Overtaken
from dagster_gpufair.ledger import (
    approvals,
    events,
    leases,
    lifecycle,
    nodes,
    promises,
    requests,
    reservations,
)
from dagster_gpufair.ledger.leases import LeaseRecord, recorded
from dagster_gpufair.ledger.requests import RequestRecord
from dagster_gpufair.policy.models import Pausable
from dagster_gpufair.scheduling.model import Account, Plan, Preemption, Start, Victim


class CarriedOut:
    """What was written, to be taken into the book once it is committed."""

    def __init__(self) -> None:
        self.granted: list[LeaseRecord] = []
        self.changed: list[LeaseRecord] = []
        """Leases that were given notice, were spared, or whose term was renewed."""
        self.promised: dict[str, Any] = {}
        """By request, what is promised to it from now on, or None."""
        self.reserved: Sequence[reservations.Row] | None = None
        self.blocked: Mapping[str, tuple[str, str]] | None = None

    def enter(self, book: Book) -> None:
        """Bring the book to what the ledger has."""
        for request_id, promise in self.promised.items():
            book.promise(request_id, promise)
        for lease in self.granted:
            book.granted(lease)
        for lease in self.changed:
            book.hold(lease)
        if self.reserved is not None:
            book.reserved = self.reserved
        if self.blocked is not None:
            book.blocked = dict(self.blocked)


def carry_out(
    session: Session,
    book: Book,
    plan: Plan,
    starts: Sequence[Start],
    *,
    blocked: Mapping[str, tuple[str, str]],
    used: Mapping[tuple[Account, str], float],
    cordoned: Mapping[str, frozenset[str]],
    policy_version: int,
    paused: Collection[Pausable],
    approved: Mapping[str, Mapping[str, Any]],
    grace: Callable[[str], float],
    now: float,
) -> CarriedOut:
    """Write a plan, all of it or nothing.

    Args:
        starts: those of the plan's that really start: Dagster's own limits may keep others back.
        blocked: what something outside the decision keeps from starting, with reason and sentence.
        used: what the plan was made from besides what the events say; so are ``cordoned`` and ``paused``.
        approved: by request id, what a person has agreed to.
        grace: seconds of notice in a pool.

    Raises:
        Overtaken: if nodes were taken out of service or put back since the pass began.
    """
    if nodes.cordoned_by_pool(session) != cordoned:
        raise Overtaken("other nodes are out of service than when it began")
    written = CarriedOut()
    spared = [lease for lease in _held(book, plan.spared) if lease.state == "notice"]
    acts = starts or plan.preemptions or plan.withdrawn or spared or plan.renewed
    _note_pass(session, book, bool(acts), starts, blocked, used, policy_version, paused, now)
    _note_blocked(session, book, blocked, written)
    _note_reserved(session, book, plan, now, written)
    for request_id in plan.withdrawn:
        _withdraw(session, book, request_id, "nobody leaves for it any more", now, written)
    _drop_proposals(session, book, plan, now)
    for start in starts:
        _grant(session, book, start, plan, policy_version, now, written)
    for preemption in plan.preemptions:
        until = now + grace(preemption.promise.pool)
        _preempt(session, book, preemption, approved, policy_version, until, now, written)
    for lease in spared:
        lifecycle.spare(session, lease.id, now)
        written.changed.append(leases.by_id(session, lease.id))
    for lease in _held(book, plan.renewed):
        lifecycle.renew(session, lease.id, now)
        written.changed.append(leases.by_id(session, lease.id))
    return written


def end_waiting(
    session: Session, book: Book, request: RequestRecord, how: str, now: float
) -> list[LeaseRecord]:
    """A request that waited is over: nothing is promised to it any more, and nobody leaves for it.

    Returns:
        The leases that were given notice for it, which are spared.
    """
    lifecycle.cancel(session, [request.id], now, how)
    promises.end(session, request, how, now)
    approvals.withdraw(session, request, how, now)
    victims = [lease for lease in book.leases.values() if lease.notice_for == request.id]
    return [
        leases.by_id(session, lease.id)
        for lease in victims
        if lifecycle.spare(session, lease.id, now)
    ]


def judged(start: Start, decided: Plan) -> dict[str, object]:
    """What a start was judged by, beside the best that waits in its pool: for `gpufair explain`."""
    runner_up = next((group for group in decided.waiting if group.pool == start.pool), None)
    return {
        "submitted": start.request.submitted,
        "saturation": start.saturation,
        "inside": start.inside,
        "points": start.points._asdict(),
        "beside": runner_up
        and {
            "request": runner_up.requests[0].id,
            "class": recorded(runner_up.class_),
            "saturation": runner_up.saturation,
            "inside": runner_up.inside,
            "points": runner_up.points._asdict(),
            "reason": runner_up.reason,
        },
    }


def _note_pass(
    session: Session,
    book: Book,
    acts: bool,
    starts: Sequence[Start],
    blocked: Mapping[str, tuple[str, str]],
    used: Mapping[tuple[Account, str], float],
    policy_version: int,
    paused: Collection[Pausable],
    now: float,
) -> None:
    """A pass that does something is recorded with what it was decided from, as far as no event says it."""
    changed = {id_: list(why) for id_, why in blocked.items() if book.blocked.get(id_) != why}
    freed = [id_ for id_ in book.blocked if id_ not in blocked]
    if not acts and not changed and not freed:
        return
    data = {
        "policy_version": policy_version,
        "paused": sorted(paused),
        "used": [
            [account.team, account.project, pool, hours] for (account, pool), hours in used.items()
        ],
        "blocked": changed,
        "unblocked": freed,
        "starts": [start.request.id for start in starts],
    }
    events.append(session, "pass", now, data=data)


def _note_blocked(
    session: Session,
    book: Book,
    blocked: Mapping[str, tuple[str, str]],
    written: CarriedOut,
) -> None:
    """Keep in the ledger what blocks which request, so that `gpufair queue` can say so too."""
    changed = {id_: why for id_, why in blocked.items() if book.blocked.get(id_) != why}
    freed = [id_ for id_ in book.blocked if id_ not in blocked]
    requests.block(session, changed)
    requests.unblock(session, freed)
    written.blocked = blocked


def _note_reserved(
    session: Session, book: Book, plan: Plan, now: float, written: CarriedOut
) -> None:
    """Keep in the ledger what a pass keeps for whom, if that is other than before."""
    rows, new = reservations.compared(book.reserved, plan.reservations, now)
    if rows != book.reserved:
        reservations.record(session, rows, new, now)
        written.reserved = rows


def _grant(
    session: Session,
    book: Book,
    start: Start,
    plan: Plan,
    policy_version: int,
    now: float,
    written: CarriedOut,
) -> None:
    lease_id = lifecycle.grant(
        session,
        start.request.id,
        pool=start.pool,
        gpus=start.gpus,
        nodes=start.nodes,
        cards=start.cards,
        class_=start.class_,
        at=now,
        policy_version=policy_version,
        data=judged(start, plan),
    )
    requests.to_be_told(session, start.request.id)
    _withdraw(session, book, start.request.id, "it has started", now, written)
    written.granted.append(leases.by_id(session, lease_id))


def _preempt(
    session: Session,
    book: Book,
    preemption: Preemption,
    approved: Mapping[str, Mapping[str, Any]],
    policy_version: int,
    until: float,
    now: float,
    written: CarriedOut,
) -> None:
    """Promise, and give notice; or ask a person first."""
    request = book.queued[preemption.request.id]
    victims = _victims(book, preemption.victims)
    said = [{"lease": lease.id, "run": lease.run_id, "rule": rule} for lease, rule in victims]
    if preemption.awaits_approval:
        data = {"pool": preemption.promise.pool, "gpus": preemption.promise.gpus, "victims": said}
        if approved.get(request.id) != data:
            approvals.propose(session, request, preemption.promise.pool, data, now)
            return
        approvals.done(session, request)
    promises.make(session, request, preemption.promise, said, policy_version, now)
    written.promised[request.id] = preemption.promise
    for lease, rule in victims:
        if lifecycle.notify(session, lease.id, until, request.id, rule, now):
            written.changed.append(leases.by_id(session, lease.id))


def _withdraw(
    session: Session, book: Book, request_id: str, why: str, now: float, written: CarriedOut
) -> None:
    request = book.queued.get(request_id)
    if request is not None and promises.end(session, request, why, now):
        written.promised[request_id] = None


def _drop_proposals(session: Session, book: Book, plan: Plan, now: float) -> None:
    """Nobody is asked about what would not be decided any more."""
    wanted = {each.request.id for each in plan.preemptions if each.awaits_approval}
    asked = {
        **approvals.in_state(session, "proposed"),
        **approvals.in_state(session, "approved"),
    }
    for request_id in asked.keys() - wanted:
        known = requests.by_ids(session, [request_id])
        approvals.withdraw(session, known[request_id], "not needed any more", now)


def _held(book: Book, ids: Sequence[str]) -> list[LeaseRecord]:
    return [book.leases[id_] for id_ in ids if id_ in book.leases]


def _victims(book: Book, victims: Sequence[Victim]) -> list[tuple[LeaseRecord, str]]:
    return [
        (book.leases[each.lease.id], each.rule) for each in victims if each.lease.id in book.leases
    ]
