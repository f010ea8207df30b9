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
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import NamedTuple

from dagster_gpufair.scheduling.accounts.asker import Asker
from dagster_gpufair.scheduling.accounts.entitlements import HORIZON, Key
from dagster_gpufair.scheduling.calendar.beginnings import Beginning, Rank
from dagster_gpufair.scheduling.calendar.kept import Kept
from dagster_gpufair.scheduling.calendar.promises import Promises
from dagster_gpufair.scheduling.calendar.then import Then
from dagster_gpufair.scheduling.model import Class, Lease, Request, Reservation
from dagster_gpufair.scheduling.present import Present
from dagster_gpufair.scheduling.stoppable import Stoppable

STRONG, WEAK = "strong", "weak"
"""The two reservations a pool may have: of what is urgent or guaranteed, and of what borrows."""

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
        self._reserved: dict[str, dict[str, Beginning]] = {}
        self._in_vain: dict[tuple[object, ...], int] = {}
        self._made: Counter[str] = Counter()
        self._to_come: dict[str, Mapping[Key, Sequence[float]]] = {}
        self._begins: dict[str, dict[float, Beginning]] = {}
        """What comes into force, by pool and time, as far as it was asked about."""
        self._versions: dict[Beginning, int] = {}
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

        def without(then: Then, staying: Iterable[Lease] = ()) -> Then:
            other = then.copy()
            for lease in staying:
                other.stay(lease)
            other.fulfil(kept)
            return other

        # What is reserved, or promised to others, may stop them as well.
        beginnings = {
            each: without(each.then, victims if each.owner is None else ())
            for each in self.beginnings(asker, now)
        }
        then, at_last = self.as_now(asker.pool), self._promises.at_last(asker.pool)
        return self.place_then(asker, now, without(then, victims), beginnings, without(at_last))

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
        for each in self._reserved_in(asker.pool):
            if each.owner is not None and each.owner.request is not asker.request:
                yield each
        claim = self.claim_of(asker)
        if claim is not None and _owner(claim).request is not asker.request:
            yield claim
        yield from self._comes_into_force(asker, begins)

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
        reserved = self._reserved_in(pool)
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
        return bool(self._to_come_in(pool))

    def is_in_the_way(self, reservation: Reservation, asker: Asker) -> bool:
        """Whether an asker could not start now beside this one, were it the only one."""
        for each in self._reserved_in(asker.pool):
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
            return self._is_gone_for(beginning, lease)
        if not self._stoppable.by_itself:
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
            for each in self._reserved_in(pool)
            if each.owner is not None and each.owner.request is not asker.request
        ]
        to_come = self._changes(pool, leases, ends, others, until)
        if not to_come:
            return None
        then = self.as_now(pool)
        for each in others:
            if each.at is None or self._nothing_passes:
                then.block(_owner(each), each.nodes or {})
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
            question = self._ahead_of(pool, at, then)
            if question in tried:
                continue
            tried.add(question)
            if then.class_of(asker) is None or asker.gpus > then.left_for(asker):
                continue
            later = [
                *(each for each in others if each.at is not None and each.at > at),
                *self._comes_into_force(asker, at),
            ]
            binding = [each for each in later if not self._passes(asker, at, each)]
            if self._leave_enough(binding, asker, rank):
                nodes = then.place(asker, _may_take(binding))
                if nodes is not None:
                    return Opening(at, nodes, then)
        return None

    def _ahead_of(self, pool: str, at: float, then: Then) -> object:
        """What is in force, and how far away is what comes into force."""
        ahead = []
        for key, moments in self._to_come_in(pool).items():
            later = bisect_right(moments, at)
            ahead.append((key, moments[later] - at if later < len(moments) else None))
        return then.balance.key, tuple(ahead)

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
            owner, nodes = _owner(each), each.nodes or {}
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
            and (length := _owner(each).request.max_duration) is not None
            and each.at + length <= until
            for each in self._reserved_in(pool)
        ) or any(at <= until for at, _ in self._present.accounts.entitlements.changes(pool, now))

    # -- what comes into force -------------------------------------------------------------------

    def _comes_into_force(self, asker: Asker, begins: float) -> Iterable[Beginning]:
        """For each set of grants and windows for which more is held back: when that is first in force.

        What lasts beyond the horizon meets again what recurs, whenever it begins.
        """
        to_come = self._to_come_in(asker.pool)
        if not to_come:
            return ()
        length = asker.request.max_duration
        outlasts = length is None or begins + length > self._present.now + HORIZON
        recurs = self._present.accounts.entitlements.recurs
        found = []
        for key, moments in to_come.items():
            later = bisect_right(moments, begins)
            if later < len(moments):
                found.append(self._to_come_at(asker.pool, moments[later], key))
            elif outlasts and recurs(asker.pool, key):
                found.append(self._to_come_at(asker.pool, moments[-1], key))
        return found

    def _to_come_in(self, pool: str) -> Mapping[Key, Sequence[float]]:
        """The sets of grants and windows for which more is held back than before, and when they begin."""
        if pool not in self._to_come:
            entitlements = self._present.accounts.entitlements
            before = self._present.accounts.in_force(pool)
            found: dict[Key, list[float]] = {}
            for at, key in entitlements.changes(pool, self._present.now):
                if entitlements.beneficiaries(pool, key, before):
                    found.setdefault(key, []).append(at)
                before = key
            self._to_come[pool] = found
        return self._to_come[pool]

    def _to_come_at(self, pool: str, at: float, key: Key) -> Beginning:
        known = self._begins.setdefault(pool, {})
        if at not in known:
            known[at] = self._work_out(pool, at, key)
        return known[at]

    def _work_out(self, pool: str, at: float, key: Key) -> Beginning:
        then = self.as_now(pool)
        then.come_into_force(key)
        beginning = Beginning(at, then)
        for lease in list(self._present.running.in_pool(pool)):
            if self._is_gone_for(beginning, lease):
                then.end(lease)
        return beginning

    def _is_gone_for(self, beginning: Beginning, lease: Lease) -> bool:
        """Whether a lease is over when that comes into force, or can be stopped for those who gain by it."""
        at = beginning.at
        assert at is not None
        if lease.ends is not None and lease.ends <= at:
            return True
        present = self._present
        key = beginning.then.balance.key
        gaining = present.accounts.entitlements.beneficiaries(
            lease.pool, key, present.accounts.in_force(lease.pool)
        )
        return bool(gaining - {lease.team}) and self._stoppable.could_be_reclaimed_by(lease, at)

    # -- reservations ----------------------------------------------------------------------------

    def __bool__(self) -> bool:
        return any(self._reserved.values())

    def reservations(self) -> list[Reservation]:
        """All of them, by pool."""
        return [
            each.reservation
            for pool in sorted(self._reserved)
            for each in self._reserved[pool].values()
        ]

    def clear(self) -> None:
        """Forget all reservations."""
        self._reserved.clear()
        self._begins.clear()
        self._in_vain.clear()
        self._made.update(self._made.keys())

    def version(self, pool: str) -> int:
        """A number that changes whenever one is made in the pool, or all are forgotten."""
        return self._made[pool]

    def is_open(self, pool: str, class_: Class) -> bool:
        """Whether a request of this class could reserve in the pool."""
        return _strength(class_) not in self._reserved.get(pool, ())

    def has_place(self, pool: str) -> bool:
        """Whether any request could reserve in the pool."""
        return len(self._reserved.get(pool, ())) < len((STRONG, WEAK))

    def others(self, asker: Asker) -> tuple[Beginning, ...]:
        """The reservations of others in its pool."""
        return tuple(
            each
            for each in self._reserved_in(asker.pool)
            if each.owner is not None and each.owner.request is not asker.request
        )

    def reserve(self, askers: Iterable[Asker]) -> Reservation | None:
        """Reserve for a request, in that pool and size of its list in which it would start earliest."""
        askers = list(askers)
        if not any(self.is_open(asker.pool, asker.class_) for asker in askers):
            return None
        openings = [(asker, self._opening(asker)) for asker in askers]
        known = [(asker, opening) for asker, opening in openings if opening is not None]
        if known:
            asker, opening = min(known, key=lambda each: each[1].at)
            if self.is_open(asker.pool, asker.class_):
                then = opening.then
                then.block(asker, opening.nodes)
                return self._enter(asker, opening.at, opening.nodes, then)
            return None
        for asker, _ in openings:
            if asker.class_ is not Class.BORROWING and self.is_open(asker.pool, asker.class_):
                nodes = self.placement_in_the_end(asker)
                if nodes is not None:
                    return self._enter(asker, None, nodes, self.as_now(asker.pool))
        return None

    def _enter(
        self, asker: Asker, at: float | None, nodes: dict[str, int], then: Then
    ) -> Reservation:
        beginning = Beginning(at, then, asker, nodes, self._rank(asker))
        if at is None:
            beginning.then = self.keeping(beginning, then)
        self._reserved.setdefault(asker.pool, {})[_strength(asker.class_)] = beginning
        self._versions[beginning] = self._present.running.version(asker.pool)
        self._made[asker.pool] += 1
        return beginning.reservation

    def keeping(self, beginning: Beginning, then: Then) -> Then:
        """A pool in which what is free of a placement is kept for its owner, who has no known start."""
        owner, kept = _owner(beginning), then.copy()
        # What the fast lane keeps from the owner stays free.
        left = then.room.free - (0 if then.in_lane(owner) else then.room.lane_left)
        nodes = {}
        for node, part in sorted((beginning.nodes or {}).items()):
            nodes[node] = max(0, min(part, then.room.nodes.free.get(node, 0), left))
            left -= nodes[node]
        kept.block(owner, nodes)
        return kept

    def _reserved_in(self, pool: str) -> list[Beginning]:
        held = self._reserved.get(pool)
        if not held:
            return []
        for each in held.values():
            # Without a known start it is what is free now that is kept.
            version = self._present.running.version(pool)
            if each.keeps_what_is_free and self._versions[each] != version:
                each.then = self.keeping(each, self.as_now(pool))
                each.changed()
                self._versions[each] = version
        return list(held.values())

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

    def placement_in_the_end(
        self, asker: Asker, *, for_its_quota: bool = False
    ) -> dict[str, int] | None:
        """Where it would fit once all bounded leases and all others' borrowed parts are gone.

        Args:
            for_its_quota: smaller runs of its account are gone too, and nothing is reserved.
        """
        then = self._in_the_end(asker, for_its_quota)
        if then.class_of(asker) is None:
            return None
        nodes = then.place(asker)
        return None if nodes is None or not self._is_always_left(asker, then) else nodes

    def never_leaves(self, asker: Asker) -> bool:
        """Whether what recurs leaves it no place, though nothing else would be in its way in the end."""
        if not self.has_to_come(asker.pool):
            return False
        then = self._in_the_end(asker, for_its_quota=True)
        if then.place(asker) is None:
            return False
        recurs = self._present.accounts.entitlements.recurs
        return not self._is_always_left(asker, then, lambda key: recurs(asker.pool, key))

    def _in_the_end(self, asker: Asker, for_its_quota: bool) -> Then:
        present = self._present
        then = self.as_now(asker.pool)
        for each in () if for_its_quota else self.others(asker):
            then.block(_owner(each), each.nodes or {})
        for lease in list(present.running.in_pool(asker.pool)):
            its = present.running.borrowed_now(lease)
            borrowed = its.inside if lease.team == asker.request.team else its.from_others
            own = present.accounts.holding(lease, lease.pool) is asker.holding
            if (
                self._stoppable.gone_by(asker, lease) is not None
                or (borrowed and not own)
                or (own and for_its_quota and lease.gpus < asker.gpus)
            ):
                then.end(lease)
        return then

    def _is_always_left(
        self, asker: Asker, then: Then, matters: Callable[[Key], bool] = lambda key: True
    ) -> bool:
        """Whether all that comes into force leaves it enough of what is free in the end."""
        for each in self._comes_into_force(asker, self._present.now):
            key = each.then.balance.key
            if matters(key):
                then.come_into_force(key)
                if asker.gpus > then.left_for(asker):
                    return False
        return True

    # -- what happens in the pass ----------------------------------------------------------------

    def started(self, asker: Asker, nodes: Mapping[str, int]) -> None:
        """Something starts now: it counts in what is to come, as far as it is still there then."""
        now = self._present.now
        for each in self._with_a_time(asker.pool):
            if self._passes(asker, now, each):
                each.then.pass_by(asker)
            else:
                each.then.begin(asker, now, nodes)
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
        self._begins.pop(pool, None)

    def _with_a_time(self, pool: str) -> Sequence[Beginning]:
        reserved = [each for each in self._reserved.get(pool, {}).values() if each.at is not None]
        return [*reserved, *self._begins.get(pool, {}).values()]


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


def _owner(beginning: Beginning) -> Asker:
    assert beginning.owner is not None
    return beginning.owner


def _strength(class_: Class) -> str:
    return WEAK if class_ is Class.BORROWING else STRONG
