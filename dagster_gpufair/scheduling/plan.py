"""The decision: who starts now, who is stopped for whom, and why the rest waits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from dagster_gpufair.policy.models import Policy
from dagster_gpufair.scheduling.accounts.asker import Asker
from dagster_gpufair.scheduling.calendar.claims import Claims
from dagster_gpufair.scheduling.model import (
    Class,
    Plan,
    Preemption,
    Promise,
    Reservation,
    Start,
    State,
)
from dagster_gpufair.scheduling.queue.queue import Queue, Turn
from dagster_gpufair.scheduling.snapshot import Snapshot
from dagster_gpufair.scheduling.victims import Found, Victims
from dagster_gpufair.scheduling.waiting.left import waiting


def plan(policy: Policy, state: State, now: float) -> Plan:
    """Decide one pass: the best of all waiting requests first, then the next, until none is left.

    Each starts in the first pool and size of its list in which it can start now: where the rules for its
    account allow it, the GPUs are free beyond what is held back for others, and the nodes can give the
    shape. If only space is missing, it preempts and is promised what it needs, or reserves. Everything else
    waits, for one reason, judged once all starts are known.

    The same inputs give the same plan, whatever the order of their dicts and lists, and to plan again once
    it is carried out changes nothing.
    """
    one = _Pass(Snapshot(policy, state, now), state)
    while one.goes_round() and one.may_change_again():
        one.begin_again()
    return one.outcome(policy, state, now)


class _Pass:
    """One pass as it goes on."""

    def __init__(self, snapshot: Snapshot, state: State) -> None:
        self._snapshot = snapshot
        self._queue = Queue(snapshot, state.requests, state.blocked)
        self._claims = Claims(snapshot, snapshot.stoppable, snapshot.calendar, self._queue.asks)
        self._victims = Victims(snapshot)
        self._starts: list[Start] = []
        self._preemptions: list[Preemption] = []
        self._proposals: list[Preemption] = []

    def goes_round(self) -> bool:
        """Everybody has a turn, the best first; whether anything has come of it."""
        before = len(self._starts) + len(self._preemptions)
        while (turn := self._queue.next()) is not None:
            if turn.is_stuck:
                self._make_room(turn)
            elif turn.secures:
                self._secure(turn)
            else:
                self._start(turn)
        return len(self._starts) + len(self._preemptions) > before

    def may_change_again(self) -> bool:
        """Whether what has happened could let another start or preempt.

        Where nothing is reserved, claimed or preempted it cannot: free GPUs only shrank, and use only
        grew. But reservations are made at their turn, and might be others by now.
        """
        snapshot = self._snapshot
        return bool(snapshot.calendar.reservations or snapshot.stoppable.stops_work or self._claims)

    def begin_again(self) -> None:
        """Those who wait have their turns once more, and reserve anew, or ask a person anew."""
        self._snapshot.calendar.begin_again()
        for proposal in self._proposals:
            self._snapshot.promises.take_back(proposal)
        self._proposals.clear()
        self._queue.again()

    def outcome(self, policy: Policy, state: State, now: float) -> Plan:
        """What has been decided, and why the rest waits."""
        snapshot = self._snapshot
        given_notice = {victim.lease.id for each in self._preemptions for victim in each.victims}
        decided = Plan(
            starts=self._starts,
            waiting=(),
            preemptions=[*self._preemptions, *self._proposals],
            reservations=[
                *snapshot.calendar.reservations.all(),
                *self._claims.all(),
            ],
            withdrawn=sorted(snapshot.promises.withdrawn),
            spared=sorted(snapshot.promises.spared - given_notice),
            renewed=snapshot.stoppable.renewed(),
        )
        uncordoned = None
        if any(state.cordoned.values()):
            after = state.following(decided, now, snapshot.grace)
            uncordoned = Snapshot(policy, replace(after, cordoned={}), now)
        waits = waiting(snapshot, self._queue, decided, uncordoned)
        return replace(decided, waiting=waits)

    def _start(self, turn: Turn) -> None:
        """It starts where it stands, or goes on to its next choice."""
        snapshot, asker = self._snapshot, turn.asker
        request, kept = turn.request, snapshot.promises.of(turn.request.id)
        nodes = snapshot.place(asker)
        if (
            nodes is None
            or not snapshot.within_ceilings(asker)
            # What was promised before is its own, whoever has claimed the quota since.
            or (kept is None and snapshot.calendar.claims_quota_from(asker) is not None)
        ):
            self._queue.try_next(turn)
            return
        if kept is not None:
            snapshot.fulfil(kept)
        standing = snapshot.standing(request, asker.holding, asker.gpus)
        cards = snapshot.start(asker, nodes)
        self._starts.append(
            Start(
                request=request,
                pool=asker.pool,
                gpus=asker.gpus,
                nodes=snapshot.room(asker.pool).said(nodes),
                class_=standing.class_,
                saturation=standing.saturation,
                points=standing.points,
                inside=standing.inside,
                cards=cards,
            )
        )
        if request.promised is not None and kept is not None and nodes is not kept.nodes:
            snapshot.started_elsewhere(kept)
        self._queue.started(turn, nodes)
        if kept is not None and kept.lease is not None and nodes is not kept.nodes:
            self._queue.freed(kept)

    def _secure(self, turn: Turn) -> None:
        """What a quota covers is kept for it while it tries for more, or for a pool it likes more.

        So offering more never loses a guarantee.
        """
        if self._place(turn.first) is None:
            self._queue.try_next(turn)
            return
        nodes = self._place(turn.asker)
        if nodes is None:
            self._queue.secures_not(turn)
            return
        self._queue.secured(turn, self._snapshot.secure(turn.asker, nodes))

    def _place(self, asker: Asker) -> Mapping[str, int] | None:
        """Where it would start now, if no ceiling and no claim on the quota keeps it from that."""
        return self._snapshot.place(asker) if self._lacks_space_only(asker) else None

    def _make_room(self, turn: Turn) -> None:
        """It preempts, or reserves, or only waits.

        Where a person has to agree, the same is decided, and carried out only then.
        """
        for asker in self._to_preempt_for(turn):
            found = self._victims.find(asker)
            if found is not None:
                self._preempt(turn, asker, found)
                return
        reservation = self._reserve(turn)
        if reservation is None:
            self._queue.pass_over(turn)
        else:
            self._queue.reserved(turn, reservation.pool)

    def _preempt(self, turn: Turn, asker: Asker, found: Found) -> None:
        snapshot = self._snapshot
        nodes = snapshot.room(asker.pool).said(found.nodes)
        proposed = {each.request.id for each in self._proposals}
        awaits = not snapshot.stoppable.by_itself_in(asker.pool) and (
            any(victim.rule != "term" for victim in found.victims)
            or (bool(proposed) and self._victims.counts_on(asker, found, proposed))
        )
        preemption = Preemption(
            request=asker.request,
            promise=Promise(asker.pool, asker.gpus, nodes),
            victims=found.victims,
            awaits_approval=awaits,
        )
        (self._proposals if awaits else self._preemptions).append(preemption)
        snapshot.promise(asker, found.nodes, found.victims)
        self._queue.promised(turn, asker, awaits)

    def _to_preempt_for(self, turn: Turn) -> list[Asker]:
        """Pools in order of liking, and in each the largest guaranteed size first.

        None of them if enough ends by itself in any: that is waited for.
        """
        if turn.request.rejected:
            return []
        askers = [asker for asker in turn.wanted() if self._lacks_space_only(asker)]
        may_stop_in = self._snapshot.stoppable.may_stop_in
        if not any(may_stop_in(asker.pool) for asker in askers):
            return []
        if any(self._victims.are_needless(asker) for asker in askers):
            return []
        order = {pool: at for at, pool in enumerate(dict.fromkeys(asker.pool for asker in askers))}
        return sorted(
            askers,
            key=lambda asker: (order[asker.pool], asker.class_ is Class.BORROWING, -asker.gpus),
        )

    def _reserve(self, turn: Turn) -> Reservation | None:
        """Reserve, if it is only space that it waits for."""
        askers = [
            asker
            for asker in turn.allowed()
            if self._lacks_space_only(asker)
            and (asker.class_ is not Class.BORROWING or self._may_reserve_borrowed(turn, asker))
        ]
        return self._snapshot.calendar.reserve(askers) if askers else None

    def _lacks_space_only(self, asker: Asker) -> bool:
        """Whether no ceiling and no claim on the quota keeps it as well."""
        if not self._snapshot.within_ceilings(asker):
            return False
        return self._snapshot.calendar.claims_quota_from(asker) is None

    def _may_reserve_borrowed(self, turn: Turn, asker: Asker) -> bool:
        """What borrows reserves once it has waited, and if more than others' held-back is missing."""
        return turn.group.ask.has_waited and not self._snapshot.is_held_back_only(asker)
