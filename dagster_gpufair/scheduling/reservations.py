"""Reservations: what waits for space keeps it from worse requests, which may slip in before it.

In each pool at most one urgent or guaranteed request holds one, and one that borrows and has waited
``reserve_after``. Its placement and start are fixed when it is made: the earliest at which it fits.
Past it, something may start only if it is gone by then (by its bound, or because the owner may stop it), or
uses what the placement leaves over.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from dagster_gpufair.scheduling.capacity import Room
from dagster_gpufair.scheduling.holding import Holding
from dagster_gpufair.scheduling.horizon import Asker, Future, Opening, earliest
from dagster_gpufair.scheduling.model import Class, Lease, Reservation

if TYPE_CHECKING:
    from dagster_gpufair.scheduling.snapshot import Snapshot

STRONG, WEAK = "strong", "weak"
"""The two reservations a pool may have: of what is urgent or guaranteed, and of what borrows."""


class Bound(NamedTuple):
    """How much an asker may take in a pool, in all and on the nodes named, past the reservations there."""

    most: float
    on_nodes: Mapping[str, int] | None


UNBOUND = Bound(math.inf, None)
NOTHING = Bound(-1, None)


@dataclass
class _Held:
    """A reservation, and what it leaves over: in all and on its nodes, from its start on."""

    reservation: Reservation
    owner: Asker
    over: int = 0
    over_on: dict[str, int] = field(default_factory=dict)


class Freed:
    """Leases of a pool that would be stopped, and what their GPUs add to what its reservations leave over.

    A reservation counts on some of them already: on those that are gone by its start.
    """

    def __init__(self, snapshot: Snapshot, pool: str) -> None:
        self._snapshot = snapshot
        self._held = snapshot.reservations.held_in(pool)
        self._more = [0 for _ in self._held]
        self._more_on: list[dict[str, int]] = [{} for _ in self._held]
        self.leases: dict[str, Lease] = {}

    def add(self, lease: Lease) -> None:
        """It would be stopped too."""
        self.leases[lease.id] = lease
        self._count(lease, 1)

    def remove(self, lease: Lease) -> None:
        """It would stay after all."""
        del self.leases[lease.id]
        self._count(lease, -1)

    def over(self, held: _Held) -> tuple[int, dict[str, int]]:
        """What a reservation with a known start leaves over, in all and on its nodes."""
        at = self._held.index(held)
        more = self._more_on[at]
        over_on = {node: part + more.get(node, 0) for node, part in held.over_on.items()}
        return held.over + self._more[at], over_on

    def _count(self, lease: Lease, sign: int) -> None:
        for at, held in enumerate(self._held):
            start = held.reservation.at
            ends = self._snapshot.preemption.gone_by(held.owner, lease)
            if start is None or (ends is not None and ends <= start):
                continue
            for node, part in self._snapshot.room(lease.pool).where(lease).items():
                self._more[at] += sign * part
                self._more_on[at][node] = self._more_on[at].get(node, 0) + sign * part


class Reservations:
    """Those of one pass, as they are made."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._nothing_passes = not snapshot.policy.backfill.enabled
        self._held: dict[str, dict[str, _Held]] = {}
        self._in_vain: dict[tuple[object, ...], int] = {}
        self._made: Counter[str] = Counter()

    def __bool__(self) -> bool:
        return any(self._held.values())

    def all(self) -> list[Reservation]:
        """All of them, by pool."""
        return [
            replace(reservation, nodes=self._snapshot.room(pool).said(reservation.nodes))
            for pool in sorted(self._held)
            for reservation in (held.reservation for held in self._held[pool].values())
        ]

    def clear(self) -> None:
        """Forget all of them."""
        self._held.clear()
        self._in_vain.clear()
        self._made.update(self._made.keys())

    def version(self, pool: str) -> int:
        """A number that changes whenever one is made in the pool, or all are forgotten."""
        return self._made[pool]

    def is_open(self, pool: str, class_: Class) -> bool:
        """Whether a request of this class could hold one in the pool."""
        return _strength(class_) not in self._held.get(pool, ())

    def has_place(self, pool: str) -> bool:
        """Whether any request could hold one in the pool."""
        return len(self._held.get(pool, ())) < len((STRONG, WEAK))

    def guaranteed_in(self, holding: Holding) -> tuple[Asker, float | None] | None:
        """Who of an account holds the reservation of its pool as guaranteed, and from when."""
        held = self._held.get(holding.pool, {}).get(STRONG)
        if held is None or held.owner.holding is not holding:
            return None
        if held.owner.class_ is not Class.GUARANTEED:
            return None
        return held.owner, held.reservation.at

    def held_in(self, pool: str) -> list[_Held]:
        """Those of a pool."""
        return list(self._held.get(pool, {}).values())

    def blocks(self, asker: Asker) -> tuple[Reservation, ...]:
        """Those of others in its pool."""
        return tuple(
            held.reservation
            for held in self._held.get(asker.pool, {}).values()
            if held.owner.request is not asker.request
        )

    def make(self, askers: Iterable[Asker]) -> Reservation | None:
        """Reserve for a request, in that pool and size of its list in which it would start earliest."""
        askers = list(askers)
        if not any(self.is_open(asker.pool, asker.class_) for asker in askers):
            return None
        openings = [(asker, self._opening(asker)) for asker in askers]
        known = [(asker, opening) for asker, opening in openings if opening is not None]
        if known:
            asker, opening = min(known, key=lambda each: each[1].at)
            if self.is_open(asker.pool, asker.class_):
                return self._hold(asker, opening.at, opening.nodes, opening.future)
            return None
        for asker, _ in openings:
            if asker.class_ is not Class.BORROWING and self.is_open(asker.pool, asker.class_):
                nodes = self._placement_in_the_end(asker)
                if nodes is not None:
                    return self._hold(asker, None, nodes, None)
        return None

    def limits(self, asker: Asker, begins: float, room: Room, freed: Freed | None = None) -> Bound:
        """What the reservations of its pool let an asker take if it begins then.

        ``room`` is the pool as it would find it, once ``freed`` are gone.
        """
        held_here = self._held.get(asker.pool)
        if not held_here:
            return UNBOUND
        bounds = [
            self._bound(held, asker, begins, room, freed)
            for held in held_here.values()
            if held.owner.request is not asker.request
        ]
        most = min((bound.most for bound in bounds), default=math.inf)
        on_nodes: dict[str, int] = {}
        for bound in bounds:
            for node, left in (bound.on_nodes or {}).items():
                on_nodes[node] = min(left, on_nodes.get(node, left))
        return Bound(most, on_nodes or None)

    def is_in_the_way(self, reservation: Reservation, asker: Asker) -> bool:
        """Whether an asker could not start now beside this one, were it the only one."""
        room = self._snapshot.room(asker.pool)
        for held in self._held.get(asker.pool, {}).values():
            if held.owner.request is reservation.request is not asker.request:
                bound = self._bound(held, asker, self._snapshot.now, room, None)
                if asker.gpus > bound.most or bound.on_nodes is None:
                    return asker.gpus > bound.most
                nodes = room.place(asker.gpus, asker.request.gpus_per_node, bound.on_nodes)
                return nodes is None
        return False

    def _bound(
        self, held: _Held, asker: Asker, begins: float, room: Room, freed: Freed | None
    ) -> Bound:
        """What one of them lets an asker take."""
        if self._nothing_passes:
            return NOTHING
        owner, at = held.owner, held.reservation.at
        if self._is_gone_by(asker, begins, owner, at):
            return UNBOUND
        if at is None:
            over, over_on = self._over_now(held, room)
        elif freed is None:
            over, over_on = held.over, held.over_on
        else:
            over, over_on = freed.over(held)
        lane = self._lane_for(asker, owner, room)
        on_nodes = {node: left + lane for node, left in over_on.items()}
        return Bound(over + lane + asker.holding.held_back, on_nodes)

    def surely_leave(self, pool: str) -> tuple[float, Set[str]]:
        """How many GPUs of a pool anybody may take in all, and the nodes of which perhaps none."""
        held_here = self._held.get(pool)
        if not held_here:
            return float("inf"), frozenset()
        if self._nothing_passes:
            return 0, frozenset()
        room = self._snapshot.room(pool)
        most = float("inf")
        nodes: set[str] = set()
        for held in held_here.values():
            over, over_on = held.over, held.over_on
            if held.reservation.at is None:
                over, over_on = self._over_now(held, room)
            most = min(most, over)
            if room.named:
                nodes.update(over_on)
            else:
                most = min([most, *over_on.values()])
        return most, nodes

    def taken(self, asker: Asker, begins: float, nodes: Mapping[str, int]) -> None:
        """Something starts, or is promised: what it uses beyond their starts is no longer left over."""
        room = self._snapshot.room(asker.pool)
        for held in self._held.get(asker.pool, {}).values():
            at = held.reservation.at
            if at is None or self._is_gone_by(asker, begins, held.owner, at):
                continue
            lane = self._lane_for(asker, held.owner, room)
            held.over -= max(0, asker.gpus - lane - asker.holding.held_back)
            for node, part in nodes.items():
                if node in held.over_on:
                    held.over_on[node] -= max(0, part - lane)

    def _over_now(self, held: _Held, room: Room) -> tuple[int, dict[str, int]]:
        """What is left over beside the free GPUs that a reservation without a known start keeps."""
        owner, free, placement = held.owner, room.nodes.free, held.reservation.nodes
        kept = {node: min(part, max(0, free[node])) for node, part in placement.items()}
        lane = 0 if room.in_lane(owner.gpus, owner.request.max_duration) else room.lane_left
        held_back = self._snapshot.accounts.held_back_by_others(owner.holding)
        over = room.free - held_back - lane - sum(kept.values())
        return max(0, over), {node: free[node] - part for node, part in kept.items()}

    def _lane_for(self, asker: Asker, owner: Asker, room: Room) -> int:
        """What is free in a fast lane that an asker may use, and the owner of a reservation may not."""
        if room.in_lane(owner.gpus, owner.request.max_duration):
            return 0
        return room.lane_left if room.in_lane(asker.gpus, asker.request.max_duration) else 0

    def _is_gone_by(self, asker: Asker, begins: float, owner: Asker, at: float | None) -> bool:
        """Whether what begins then will not be in the way of a reservation."""
        if at is None:
            return False
        lease = asker.as_lease(begins)
        if lease.ends is not None and lease.ends <= at:
            return True
        if not self._snapshot.preemption.by_itself:
            return False
        ends = self._snapshot.preemption.gone_by(owner, lease)
        return ends is not None and ends <= at

    def _opening(self, asker: Asker) -> Opening | None:
        """When and where it would start by what is known to end."""
        snapshot = self._snapshot
        key = (
            asker.holding,
            asker.gpus,
            asker.request.gpus_per_node,
            asker.request.tier,
            asker.class_,
        )
        if self._in_vain.get(key) == snapshot.running.version(asker.pool):
            return None
        blocks = self.blocks(asker)

        def gone(lease: Lease) -> float | None:
            return snapshot.preemption.gone_by(asker, lease)

        leases = snapshot.running.in_pool(asker.pool)
        found = earliest(snapshot, asker, leases, gone, blocks)
        length = asker.request.max_duration
        for block in () if self._nothing_passes else blocks:
            # It may also be over before the other one starts.
            if block.at is not None and length is not None:
                others = tuple(other for other in blocks if other is not block)
                until = block.at - length
                before = earliest(snapshot, asker, leases, gone, others, until)
                if before is not None and (found is None or before.at < found.at):
                    found = before
        if found is None:
            self._in_vain[key] = snapshot.running.version(asker.pool)
        return found

    def _placement_in_the_end(self, asker: Asker) -> dict[str, int] | None:
        """Where it would fit once all bounded leases and all others' borrowed parts are gone."""
        snapshot = self._snapshot
        future = Future(snapshot, asker.pool)
        for block in self.blocks(asker):
            future.block(block)
        for lease in list(snapshot.running.in_pool(asker.pool)):
            its = snapshot.running.lent(lease)
            same_team = lease.team == asker.request.team
            lent = its.inside if same_team else its.from_others
            others = snapshot.accounts.holding(lease, lease.pool) is not asker.holding
            if snapshot.preemption.gone_by(asker, lease) is not None or (others and lent):
                future.end(lease)
        return future.place(asker) if future.class_of(asker) is not None else None

    def _hold(
        self, asker: Asker, at: float | None, nodes: dict[str, int], future: Future | None
    ) -> Reservation:
        reservation = Reservation(
            request=asker.request,
            pool=asker.pool,
            gpus=asker.gpus,
            nodes=nodes,
            at=at,
            class_=asker.class_,
        )
        held = _Held(reservation, asker)
        if future is not None:
            held.over = future.left_for(asker) - asker.gpus
            held.over_on = {
                node: future.room.nodes.free[node] - part for node, part in nodes.items()
            }
        self._held.setdefault(asker.pool, {})[_strength(asker.class_)] = held
        self._made[asker.pool] += 1
        return reservation


def _strength(class_: Class) -> str:
    return WEAK if class_ is Class.BORROWING else STRONG
