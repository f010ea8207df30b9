"""All that is known of the future, and the two questions about it (design §5, *One calendar*).

*May it be here from now on for as long as it lasts?* and *from when at the earliest?* A start asks the first;
backfill is that same question once reservations are entered (EASY backfill, Lifka 1995); a reservation asks
the second; a search for victims asks the first with the victims gone.

What fits at a moment can only be forbidden by what begins later, so few moments are looked at: when a
reservation starts, when a claimed quota is needed, when a grant or a window comes into force, and when
promises come true.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import NamedTuple

from dagster_gpufair.scheduling.accounts.asker import Asker
from dagster_gpufair.scheduling.calendar.beginnings import Beginning, Rank, owner_of
from dagster_gpufair.scheduling.calendar.coming import Coming
from dagster_gpufair.scheduling.calendar.in_the_end import InTheEnd
from dagster_gpufair.scheduling.calendar.kept import Kept
from dagster_gpufair.scheduling.calendar.promises import Promises
from dagster_gpufair.scheduling.calendar.reservations import Reservations
from dagster_gpufair.scheduling.calendar.then import Then, staying
from dagster_gpufair.scheduling.model import Cards, Class, Lease, Request, Reservation
from dagster_gpufair.scheduling.present import Present
from dagster_gpufair.scheduling.stoppable import Stoppable

Ends = Callable[[Lease], "float | None"]
"""When a lease is over at the latest, if that is known."""


class Opening(NamedTuple):
    """A time at which an asker fits, where, and the pool as it is then, without it."""

    at: float
    nodes: dict[str, int]
    then: Then


class Calendar:
    """What is reserved, claimed, promised, and to come into force, in all pools."""

    def __init__(self, present: Present, stoppable: Stoppable, promises: Promises) -> None:
        self._present = present
        self._stoppable = stoppable
        self._promises = promises
        self._nothing_passes = not present.policy.backfill.enabled
        self._in_vain: dict[tuple[object, ...], int] = {}
        self.reservations = Reservations(present, promises)
        self._coming = Coming(present, stoppable, promises)
        self.in_the_end = InTheEnd(present, stoppable, promises, self.reservations, self._coming)
        self.claim_of: Callable[[Asker], Beginning | None] = lambda asker: None
        """What is claimed of the quota of an asker's account by one that has waited."""

    # -- may it be here from then on? ------------------------------------------------------------

    def place(self, asker: Asker) -> Mapping[str, int] | None:
        """The nodes it gets if it starts now, and may stay on for as long as it lasts; else None."""
        present, promises = self._present, self._promises
        if asker.gpus > present.left_for(asker):
            return None
        pool = asker.pool
        if promises.in_pool(pool) and not promises.allow(asker, promises.at_last(pool)):
            return None
        room = present.room(pool)
        binding = self.binding(asker, present.now)
        rank = self._rank(asker) if binding else None
        if not self._leave_enough(binding, asker, rank):
            return None
        held_back = present.accounts.held_back_by_others(asker.holding)
        may_take = _may_take(binding)
        return room.place(asker.gpus, asker.request.gpus_per_node, may_take, held_back)

    def place_instead(self, asker: Asker, kept: Kept) -> Mapping[str, int] | None:
        """The same for one that something is promised to in the pool, beside its victims, who then stay."""
        now = self._present.now
        victims = [
            lease
            for lease in self._present.room(asker.pool).leaving.values()
            if lease.notice_for == kept.request.id
        ]

        def without(then: Then, stay: Iterable[Lease] = ()) -> Then:
            other = then.copy()
            for lease in stay:
                other.stay(lease)
            other.fulfil(kept)
            return other

        beginnings = {
            each: without(each.then, self._staying_for(each, victims))
            for each in self.beginnings(asker, now)
        }
        then, at_last = self.as_now(asker.pool), self._promises.at_last(asker.pool)
        return self.place_then(asker, now, without(then, victims), beginnings, without(at_last))

    def _staying_for(self, beginning: Beginning, victims: Iterable[Lease]) -> list[Lease]:
        """Of those who stay after all, the ones that whoever begins could not have stopped instead."""
        owner = beginning.owner
        if owner is None:
            return list(victims)
        by = max(beginning.at or 0.0, self._present.soon_at(owner.pool))
        return [
            lease
            for lease in victims
            if (ends := self._stoppable.gone_by(owner, staying(lease))) is None or ends > by
        ]

    def place_then(
        self,
        asker: Asker,
        begins: float,
        then: Then,
        beginnings: Mapping[Beginning, Then],
        at_last: Then | None = None,
    ) -> Mapping[str, int] | None:
        """The same for a moment to come, once victims are gone.

        Args:
            then: the pool at that moment.
            beginnings: what begins later, and the pool at its time without the victims.
            at_last: the pool once all has left that leaves, if that is later.
        """
        if then.class_of(asker) is None or asker.gpus > then.left_for(asker):
            return None
        if self._promises.in_pool(asker.pool) and not self._promises.allow(asker, at_last or then):
            return None
        binding = [each for each in beginnings if not self._passes(asker, begins, each)]
        rank = self._rank(asker)
        if not self._leave_enough(binding, asker, rank, beginnings):
            return None
        return then.place(asker, _may_take(binding, beginnings))

    def binding(self, asker: Asker, begins: float) -> list[Beginning]:
        """What begins while it would be there, and that it has to leave enough to."""
        return [
            each for each in self.beginnings(asker, begins) if not self._passes(asker, begins, each)
        ]

    def beginnings(self, asker: Asker, begins: float) -> Iterator[Beginning]:
        """All that begins later in its pool, and is not its own."""
        for each in self.reservations.in_pool(asker.pool):
            if each.owner is not None and each.owner.request is not asker.request:
                yield each
        claim = self.claim_of(asker)
        if claim is not None and owner_of(claim).request is not asker.request:
            yield claim
        yield from self._coming.beginnings(asker, begins)

    def claims_quota_from(self, asker: Asker) -> Beginning | None:
        """What keeps the quota of its account from it, if it could not start for that now."""
        now = self._present.now
        keeping = [each for each in self.beginnings(asker, now) if each.may_keep_quota_from(asker)]
        rank = self._rank(asker) if keeping else None
        for each in keeping:
            if rank is None or each.rank >= rank or self._passes(asker, now, each):
                continue
            if self._nothing_passes or not each.leaves_quota(asker):
                return each
        return None

    def surely_leaves(self, pool: str) -> tuple[float, Set[str]]:
        """How many GPUs of a pool anybody may take in all, and the nodes of which perhaps none."""
        reserved = self.reservations.in_pool(pool)
        if not reserved:
            return math.inf, frozenset()
        if self._nothing_passes:
            return 0, frozenset()
        most = math.inf
        nodes: set[str] = set()
        for each in reserved:
            most = min(most, each.left)
            if self._present.room(pool).named:
                nodes.update(each.nodes or ())
        return most, nodes

    def has_to_come(self, pool: str) -> bool:
        """Whether a grant or a window is to come into force for which more is held back."""
        return bool(self._coming.in_pool(pool))

    def is_in_the_way(self, reservation: Reservation, asker: Asker) -> bool:
        """Whether an asker could not start now beside this one, were it the only one."""
        for each in self.reservations.in_pool(asker.pool):
            if (
                each.owner is None
                or each.owner.request is not reservation.request
                or each.owner.request is asker.request
                or self._passes(asker, self._present.now, each)
            ):
                continue
            if not self._leave_enough([each], asker, None):
                return True
            room = self._present.room(asker.pool)
            may_take = _may_take([each])
            return room.place(asker.gpus, asker.request.gpus_per_node, may_take) is None
        return False

    def _leave_enough(
        self,
        binding: Iterable[Beginning],
        asker: Asker,
        rank: Rank | None,
        thens: Mapping[Beginning, Then] | None = None,
    ) -> bool:
        return all(
            self._may_be_passed(each, asker, rank)
            and each.leaves(asker, rank, None if thens is None else thens[each])
            for each in binding
        )

    def _may_be_passed(self, beginning: Beginning, asker: Asker, rank: Rank | None) -> bool:
        """Without backfill nothing passes a reservation, nor, in its account, a claim."""
        if beginning.owner is None or not self._nothing_passes:
            return True
        return beginning.of_quota and not (
            rank is not None and beginning.keeps_quota_from(asker, rank)
        )

    def _passes(self, asker: Asker, begins: float, beginning: Beginning) -> bool:
        """Whether it need not leave anything to what begins: it is over by then, or stopped."""
        owner, at = beginning.owner, beginning.at
        if owner is not None and self._nothing_passes:
            return False
        if owner is not None and at is None:
            # What another account's quota covers need not wait for what has no known start.
            is_covered = asker.class_ < Class.SHARED or (
                asker.class_ is Class.SHARED and asker.holding.team is not owner.holding.team
            )
            return is_covered and asker.holding is not owner.holding
        assert at is not None
        lease = asker.as_lease(begins)
        if lease.ends is not None and lease.ends <= at:
            return True
        if owner is None:
            return self._coming.is_gone_for(beginning, lease)
        if not self._stoppable.by_itself_in(lease.pool):
            return False
        ends = self._stoppable.gone_by(owner, lease)
        return ends is not None and ends <= at

    def _rank(self, asker: Asker) -> Rank:
        return rank_of(self._present, asker)

    # -- from when at the earliest? --------------------------------------------------------------

    def earliest(
        self,
        asker: Asker,
        leases: Iterable[Lease],
        ends: Ends,
        until: float = math.inf,
    ) -> Opening | None:
        """The earliest time up to ``until`` from which the asker may be there.

        Of the pool's leases these end, and nobody comes but those who have reserved.
        """
        pool, present = asker.pool, self._present
        others = [
            each
            for each in self.reservations.in_pool(pool)
            if each.owner is not None and each.owner.request is not asker.request
        ]
        to_come = self._changes(pool, leases, ends, others, until)
        if not to_come:
            return None
        then = self.as_now(pool)
        for each in others:
            if each.at is None or self._nothing_passes:
                then.block(owner_of(each), each.nodes or {})
        keys = dict(present.accounts.entitlements.changes(pool, present.now))
        tried: set[object] = set()
        rank = self._rank(asker)
        for at, changes in to_come:
            for change in changes:
                change(then)
            if at in keys:
                then.come_into_force(keys[at])
            if changes:
                tried.clear()
            # Among windows that recur the same question comes again and again.
            question = self._coming.ahead_of(pool, at, then)
            if question in tried:
                continue
            tried.add(question)
            if then.class_of(asker) is None or asker.gpus > then.left_for(asker):
                continue
            later = [
                *(each for each in others if each.at is not None and each.at > at),
                *self._coming.beginnings(asker, at),
            ]
            binding = [each for each in later if not self._passes(asker, at, each)]
            if self._leave_enough(binding, asker, rank):
                nodes = then.place(asker, _may_take(binding))
                if nodes is not None:
                    return Opening(at, nodes, then)
        return None

    def as_now(self, pool: str) -> Then:
        """The pool as it is now, for something to be tried on."""
        return Then(self._present, self._promises, pool)

    def _changes(
        self,
        pool: str,
        leases: Iterable[Lease],
        ends: Ends,
        others: Iterable[Beginning],
        until: float,
    ) -> list[tuple[float, list[Callable[[Then], None]]]]:
        """What happens up to ``until``, by time."""
        now = self._present.now
        at: dict[float, list[Callable[[Then], None]]] = {}

        def add(when: float | None, change: Callable[[Then], None] | None) -> None:
            if when is not None and when <= until:
                changes = at.setdefault(max(when, now), [])
                if change is not None:
                    changes.append(change)

        for lease in leases:
            add(ends(lease), lambda then, lease=lease: then.end(lease))  # type: ignore[misc]
        for kept in self._promises.in_pool(pool):
            add(kept.ends, lambda then, kept=kept: then.fulfil(kept))  # type: ignore[misc]
        for each in others:
            owner, nodes = owner_of(each), each.nodes or {}
            length = owner.request.max_duration
            if each.at is None:
                continue
            if length is not None:
                add(
                    each.at + length,
                    lambda then, owner=owner, nodes=nodes: then.unblock(owner, nodes),  # type: ignore[misc]
                )
            if not self._nothing_passes:
                add(
                    each.at,
                    lambda then, owner=owner, nodes=nodes: then.block(owner, nodes),  # type: ignore[misc]
                )
        for when, _ in self._present.accounts.entitlements.changes(pool, now):
            add(when, None)
        return sorted(at.items(), key=lambda each: each[0])

    def changes_by(self, pool: str, until: float) -> bool:
        """Whether anything that is reserved or in force in a pool is over by then."""
        now = self._present.now
        return any(
            each.at is not None
            and (length := owner_of(each).request.max_duration) is not None
            and each.at + length <= until
            for each in self.reservations.in_pool(pool)
        ) or any(at <= until for at, _ in self._present.accounts.entitlements.changes(pool, now))

    # -- reservations ----------------------------------------------------------------------------

    def begin_again(self) -> None:
        """Forget all reservations."""
        self.reservations.clear()
        self._coming.forget_all()
        self._in_vain.clear()

    def reserve(self, askers: Iterable[Asker]) -> Reservation | None:
        """Reserve for a request, in that pool and size of its list in which it would start earliest."""
        askers = list(askers)
        if not any(self.reservations.is_open(asker.pool, asker.class_) for asker in askers):
            return None
        openings = [(asker, self._opening(asker)) for asker in askers]
        known = [(asker, opening) for asker, opening in openings if opening is not None]
        if known:
            asker, opening = min(known, key=lambda each: each[1].at)
            if self.reservations.is_open(asker.pool, asker.class_):
                then = opening.then
                then.block(asker, opening.nodes)
                rank = self._rank(asker)
                return self.reservations.enter(asker, opening.at, opening.nodes, then, rank)
            return None
        for asker, _ in openings:
            if asker.class_ is not Class.BORROWING and self.reservations.is_open(
                asker.pool, asker.class_
            ):
                nodes = self.in_the_end.placement(asker)
                if nodes is not None:
                    now, rank = self.as_now(asker.pool), self._rank(asker)
                    return self.reservations.enter(asker, None, nodes, now, rank)
        return None

    def _opening(self, asker: Asker) -> Opening | None:
        """When and where it would start by what is known to end."""
        key = (
            asker.holding,
            asker.gpus,
            asker.request.gpus_per_node,
            asker.request.tier,
            asker.class_,
            asker.rights,
            asker.request.max_duration,
        )
        version = self._present.running.version(asker.pool)
        if self._in_vain.get(key) == version:
            return None
        found = self.earliest(
            asker,
            self._present.running.in_pool(asker.pool),
            lambda lease: self._stoppable.gone_by(asker, lease),
        )
        if found is None:
            self._in_vain[key] = version
        return found

    # -- what happens in the pass ----------------------------------------------------------------

    def started(self, asker: Asker, nodes: Mapping[str, int], cards: Cards) -> None:
        """Something starts now: it counts in what is to come, as far as it is still there then."""
        now = self._present.now
        for each in self._with_a_time(asker.pool):
            if self._passes(asker, now, each):
                each.then.pass_by(asker)
            else:
                each.then.begin(asker, now, nodes, cards)
            each.changed()

    def kept(
        self, asker: Asker, kept: Kept, victims: Sequence[tuple[Lease, Lease]], until: float
    ) -> None:
        """Something is promised now.

        Args:
            victims: those who were given notice for it, as they were, and as they are.
            until: when they have to be gone.
        """
        for each in self._with_a_time(asker.pool):
            assert each.at is not None
            there = [(old, new) for old, new in victims if each.then.has(old)]
            if each.at >= until:
                for _, lease in there:
                    each.then.end(lease)
            each.then.keep(kept, () if each.at >= until else there)
            if self._passes(asker, until, each):
                each.then.fulfil(kept)
            each.changed()

    def withdrawn(self, kept: Kept) -> None:
        """It is promised no more."""
        for each in self._with_a_time(kept.holding.pool):
            each.then.withdraw(kept)
            each.changed()

    def spared(self, pool: str) -> None:
        """Leases stay that were to leave: what comes into force is worked out anew."""
        self._coming.forget(pool)

    def _with_a_time(self, pool: str) -> Sequence[Beginning]:
        reserved = [each for each in self.reservations.in_pool(pool) if each.at is not None]
        return [*reserved, *self._coming.worked_out(pool)]


def rank_of(present: Present, asker: Asker) -> Rank:
    """How it ranks among all of its account: the lower comes first."""
    request: Request = asker.request
    points = present.points(request, asker.holding, present.ageing(request))
    return (-points.score, request.submitted, request.id)


def _may_take(
    binding: Sequence[Beginning], thens: Mapping[Beginning, Then] | None = None
) -> Callable[[str, int], bool] | None:
    """What they leave of each node."""
    on_nodes = [each for each in binding if each.nodes]
    if not on_nodes:
        return None
    return lambda node, gpus: all(
        each.leaves_on(node, gpus, None if thens is None else thens[each]) for each in on_nodes
    )
