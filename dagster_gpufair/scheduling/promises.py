"""Promises: what is kept for requests while their victims leave.

A promise holds as long as it can still come true: as long as what is promised will be there once all that
leaves has left. It ends when its request starts, there or elsewhere; then victims that are not needed stay.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from dagster_gpufair.scheduling.holding import Holding, Released, release
from dagster_gpufair.scheduling.horizon import Asker, Future
from dagster_gpufair.scheduling.model import Lease, Preemption, Request, Victim

if TYPE_CHECKING:
    from dagster_gpufair.scheduling.snapshot import Snapshot


class Kept(NamedTuple):
    """A promise as it is kept: where, and until when at most.

    ``leaving`` is what of its account's own work, and of its team's, was given notice for it.
    """

    request: Request
    holding: Holding
    gpus: int
    nodes: Mapping[str, int]
    ends: float | None
    leaving: tuple[int, int] = (0, 0)

    @property
    def adds(self) -> tuple[int, int]:
        """What it adds to the use of its account, and of its team, beside what leaves for it."""
        return self.adds_without(0, 0)

    def adds_without(self, own: int, of_team: int) -> tuple[int, int]:
        """The same once so much of what leaves for it has left."""
        return (
            max(0, self.gpus - self.leaving[0] + own),
            max(0, self.gpus - self.leaving[1] + of_team),
        )


class _Margin(NamedTuple):
    """What is left over for others beside what is promised to an account, in the fast ``lane`` or not."""

    holding: Holding
    in_lane: bool
    left: int
    lane: int


class Promises:
    """Those of earlier passes and of this one.

    ``withdrawn`` are the requests whose promises have ended without their starting there, and ``spared``
    the leases that stay after all since then.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._kept: dict[str, Kept] = {}
        self._margins: dict[str, tuple[int, list[_Margin]]] = {}
        self.withdrawn: list[str] = []
        self.spared: set[str] = set()

    def in_pool(self, pool: str) -> list[Kept]:
        """What is kept in a pool."""
        return [kept for kept in self._kept.values() if kept.holding.pool == pool]

    def of(self, id: str | None) -> Kept | None:
        """What is kept for a request, by its id."""
        return None if id is None else self._kept.get(id)

    def is_ready(self, kept: Kept) -> bool:
        """Whether its victims have left, and all of it is free beyond what is kept from it."""
        snapshot, pool = self._snapshot, kept.holding.pool
        room = snapshot.room(pool)
        if any(lease.notice_for == kept.request.id for lease in snapshot.running.in_pool(pool)):
            return False
        left = room.free_but_for(kept.request.id, kept.nodes) - self._kept_from(kept)
        return room.has_idle(kept.nodes) and kept.gpus <= left

    def leave(self, asker: Asker, future: Future | None = None) -> float:
        """The most that an asker may take so that what is promised to others can still come true.

        By then what is held back may be more than now, as its owners' work has left. ``future`` is the pool
        as it would be then, if not as it is now once all that leaves has left.
        """
        here = self.in_pool(asker.pool)
        if not here:
            return math.inf
        room = self._snapshot.room(asker.pool)
        in_lane = room.in_lane(asker.gpus, asker.request.max_duration)
        own = sum(kept.gpus for kept in here if kept.request is asker.request)
        if future is None:
            margins = self._at_last(asker.pool)
        else:
            margins = [
                _Margin(
                    kept.holding, is_in, future.left(kept.holding, is_in), future.room.lane_left
                )
                for kept in here
                for is_in in [room.in_lane(kept.gpus, kept.request.max_duration)]
                if kept.request is not asker.request
            ]
        most = math.inf
        for margin in margins:
            its_lane = margin.lane if in_lane and not margin.in_lane else 0
            others = margin.holding.team is not asker.holding.team
            most = min(most, margin.left + its_lane + (asker.holding.held_back if others else 0))
        return most + own

    def surely_leave(self, pool: str) -> float:
        """How many GPUs of the pool anybody may take in all, for promises to come true."""
        return min((margin.left for margin in self._at_last(pool)), default=math.inf)

    def _at_last(self, pool: str) -> list[_Margin]:
        """For each account that something is promised to, what is left over once all that leaves has left."""
        version = self._snapshot.running.version(pool)
        known, margins = self._margins.get(pool, (-1, []))
        if known != version:
            margins = self._margins_at_last(pool)
            self._margins[pool] = (version, margins)
        return margins

    def _margins_at_last(self, pool: str) -> list[_Margin]:
        here = self.in_pool(pool)
        if not here:
            return []
        accounts, room = self._snapshot.accounts, self._snapshot.room(pool)
        released: Released = {}
        if accounts.may_hold_back(pool):
            for lease in room.leaving.values():
                release(released, accounts.holding(lease, pool), lease.gpus, lease.gpus)
            for kept in here:
                of_account, of_team = kept.adds
                release(released, kept.holding, of_account - kept.gpus, of_team - kept.gpus)
        free, lane = room.free_at_last(), room.lane_left_at_last
        found = {}
        for kept in here:
            in_lane = room.in_lane(kept.gpus, kept.request.max_duration)
            if (kept.holding, in_lane) not in found:
                held_back = accounts.held_back_by_others(kept.holding, released)
                left = free - held_back - (0 if in_lane else lane)
                found[kept.holding, in_lane] = _Margin(kept.holding, in_lane, left, lane)
        return list(found.values())

    def keep_as_before(self, requests: Iterable[Request]) -> None:
        """Keep what was promised in earlier passes, if it can still come true."""
        snapshot = self._snapshot
        promised = [request for request in requests if request.promised is not None]
        for request in sorted(promised, key=lambda request: (request.submitted, request.id)):
            promise = request.promised
            assert promise is not None
            room = snapshot.room(promise.pool)
            nodes = room.promised_nodes(promise)
            holding = snapshot.accounts.holding(request, promise.pool)
            kept = Kept(request, holding, promise.gpus, nodes, None)
            if (
                snapshot.rights(request) is None
                or not room.could_keep(nodes)
                or promise.gpus > room.free_at_last() - self._kept_from(kept)
            ):
                self.withdrawn.append(request.id)
                continue
            leaving = [
                lease.ends
                for lease in snapshot.running.in_pool(promise.pool)
                if lease.ends is not None
                and room.is_leaving(lease)
                and room.where(lease).keys() & nodes.keys()
            ]
            ready = max([snapshot.now, *leaving])
            self._keep(request, holding, sum(nodes.values()), nodes, ready)
        for id in self.withdrawn:
            self._spare_victims(id)

    def make(self, asker: Asker, nodes: Mapping[str, int], victims: Iterable[Victim]) -> None:
        """The victims are given notice, and the placement is kept for the request."""
        snapshot = self._snapshot
        until = snapshot.now + snapshot.preemption.grace
        for victim in victims:
            lease = victim.lease
            leaving = replace(lease, notice_until=until, notice_for=asker.request.id)
            snapshot.running.put(leaving)
            snapshot.room(lease.pool).notify(lease, leaving)
        self._keep(asker.request, asker.holding, asker.gpus, nodes, until)

    def withdraw(self, request: Request) -> None:
        """Nothing is kept for the request any more."""
        kept = self._kept.pop(request.id, None)
        if kept is not None:
            snapshot, pool = self._snapshot, kept.holding.pool
            snapshot.room(pool).unpromise(request.id, kept.nodes)
            of_account, of_team = kept.adds
            snapshot.accounts.promise(kept.holding, -of_account, -of_team)
            snapshot.ceilings.give(request, pool, kept.gpus)
            snapshot.running.changed(pool, request.team)

    def take_back(self, proposal: Preemption) -> None:
        """What a person was to be asked for is asked no more."""
        self.withdraw(proposal.request)
        running = self._snapshot.running
        for victim in proposal.victims:
            leaving = running.of(victim.lease)
            self._snapshot.room(leaving.pool).notify(leaving, victim.lease)
            running.put(victim.lease)

    def started_elsewhere(self, request: Request) -> None:
        """It has started on other GPUs than those promised to it: its victims may stay."""
        self.withdrawn.append(request.id)
        self._spare_victims(request.id)

    def _keep(
        self,
        request: Request,
        holding: Holding,
        gpus: int,
        nodes: Mapping[str, int],
        ready: float,
    ) -> None:
        snapshot, pool = self._snapshot, holding.pool
        snapshot.room(pool).promise(request.id, nodes, request.max_duration)
        leaving = (
            lease
            for lease in snapshot.running.of_team(request.team, pool)
            if lease.notice_for == request.id
        )
        length = request.max_duration
        ends = None if length is None else ready + length
        kept = Kept(request, holding, gpus, nodes, ends, self._of_account(holding, leaving))
        self._kept[request.id] = kept
        snapshot.accounts.promise(holding, *kept.adds)
        snapshot.ceilings.take(request, pool, gpus)
        snapshot.running.changed(pool, request.team)

    def _kept_from(self, kept: Kept) -> int:
        """What is held back for others, or in a fast lane that it may not use."""
        snapshot = self._snapshot
        room = snapshot.room(kept.holding.pool)
        in_lane = room.in_lane(kept.gpus, kept.request.max_duration)
        held_back = snapshot.accounts.held_back_by_others(kept.holding)
        return held_back + (0 if in_lane else room.lane_left)

    def _of_account(self, holding: Holding, leases: Iterable[Lease]) -> tuple[int, int]:
        """GPUs of these leases that are the account's, and its team's."""
        own = of_team = 0
        for lease in leases:
            its = self._snapshot.accounts.holding(lease, lease.pool)
            own += lease.gpus if its is holding else 0
            of_team += lease.gpus if its.team is holding.team else 0
        return own, of_team

    def _spare_victims(self, of: str) -> None:
        """Let those stay that were given notice for a promise that has ended, if no other needs them."""
        running = self._snapshot.running
        leaving = [
            lease
            for pool in self._snapshot.rooms
            for lease in running.in_pool(pool)
            if lease.notice_for == of
        ]
        for lease in sorted(leaving, key=lambda lease: (lease.started, lease.id)):
            room = self._snapshot.room(lease.pool)
            staying = replace(lease, notice_until=None, notice_for=None)
            if not room.could_spare(lease, staying):
                continue
            came_true = self.surely_leave(lease.pool) >= 0
            room.notify(lease, staying)
            running.put(staying)
            if came_true and self.surely_leave(lease.pool) < 0:
                room.notify(staying, lease)
                running.put(lease)
            else:
                self.spared.add(lease.id)
