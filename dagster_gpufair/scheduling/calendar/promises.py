"""Promises: what is kept for requests while their victims leave.

A promise holds as long as it can still come true: as long as what is promised will be there once all that
leaves has left. It ends when its request starts, there or elsewhere; then victims that are not needed stay.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping
from dataclasses import replace

from dagster_gpufair.scheduling.accounts.asker import Asker
from dagster_gpufair.scheduling.accounts.holding import Holding
from dagster_gpufair.scheduling.calendar.kept import Kept
from dagster_gpufair.scheduling.calendar.then import Then, staying
from dagster_gpufair.scheduling.model import Lease, Preemption, Request, Victim
from dagster_gpufair.scheduling.present import Present


class Promises:
    """Those of earlier passes and of this one.

    ``withdrawn`` are the requests whose promises have ended without their starting there, and ``spared``
    the leases that stay after all since then.
    """

    def __init__(self, present: Present) -> None:
        self._present = present
        self._kept: dict[str, Kept] = {}
        self._at_last: dict[str, tuple[int, Then]] = {}
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
        present, pool = self._present, kept.holding.pool
        room = present.room(pool)
        if any(lease.notice_for == kept.request.id for lease in present.running.in_pool(pool)):
            return False
        left = room.free_but_for(kept.request.id, kept.nodes) - self._kept_from(kept)
        return room.has_idle(kept.nodes) and kept.gpus <= left

    def at_last(self, pool: str) -> Then:
        """The pool once all that leaves has left, which is when promises come true."""
        version = self._present.running.version(pool)
        known = self._at_last.get(pool)
        if known is None or known[0] != version:
            then = Then(self._present, self, pool)
            for lease in self._present.room(pool).leaving.values():
                then.end(lease)
            known = self._at_last[pool] = (version, then)
        return known[1]

    def allow(self, asker: Asker, then: Then) -> bool:
        """Whether what is promised to others can still come true beside an asker.

        By then what is held back may be more than now, as its owners' work has left.
        """
        for kept in self._to_come_true(asker.pool):
            if kept.request is asker.request:
                continue
            left = then.left(kept.holding, then.in_lane_as(kept.gpus, kept.request))
            if asker.gpus > left:
                spared = then.spared_by(asker, kept.holding, kept.gpus, kept.request)
                if asker.gpus - spared > left:
                    return False
        return True

    def _to_come_true(self, pool: str) -> list[Kept]:
        """What is promised in a pool once others have left."""
        return [kept for kept in self.in_pool(pool) if kept.lease is None]

    def surely_leave(self, pool: str) -> float:
        """How many GPUs of the pool anybody may take in all, for promises to come true."""
        here = self._to_come_true(pool)
        if not here:
            return math.inf
        then = self.at_last(pool)
        return min(
            then.left(kept.holding, then.in_lane_as(kept.gpus, kept.request)) for kept in here
        )

    def keep_as_before(self, requests: Iterable[Request], blocked: Container[str]) -> None:
        """Keep what was promised in earlier passes, if it can still come true by the rules in force.

        Args:
            blocked: what something outside the decision keeps from starting: its victims leave, and
                then nothing is kept for it.
        """
        present = self._present
        promised = [request for request in requests if request.promised is not None]
        for request in sorted(promised, key=lambda request: (request.submitted, request.id)):
            promise = request.promised
            assert promise is not None
            room = present.room(promise.pool)
            nodes = room.promised_nodes(promise)
            holding = present.accounts.holding(request, promise.pool)
            leaving = [
                lease
                for lease in present.running.in_pool(promise.pool)
                if room.is_leaving(lease)
                and (lease.notice_for == request.id or room.where(lease).keys() & nodes.keys())
            ]
            ready = max([present.now, *(lease.ends or present.now for lease in leaving)])
            kept = Kept(request, holding, promise.gpus, nodes, None)
            is_blocked = request.id in blocked and not any(
                lease.notice_for == request.id for lease in leaving
            )
            is_off = bool(leaving) and not present.policy.stops_work_in(promise.pool)
            if (
                is_off
                or is_blocked
                or not room.could_keep(nodes)
                or not self._could_start(kept, ready)
            ):
                self.withdrawn.append(request.id)
            else:
                self._keep(request, holding, sum(nodes.values()), nodes, ready)
        for id in self.withdrawn:
            self._spare_victims(id)

    def _could_start(self, kept: Kept, ready: float) -> bool:
        """Whether its owner could start, by the rules in force then, once all has left that leaves."""
        present, request, holding = self._present, kept.request, kept.holding
        asker = present.asker(request, holding, kept.gpus)
        if asker is None or present.ceilings.exceeded(request, holding.pool, kept.gpus):
            return False
        then = self.at_last(holding.pool).copy()
        then.come_into_force(present.accounts.entitlements.key(holding.pool, ready))
        return then.class_of(asker) is not None and kept.gpus <= then.left_for(asker)

    def make(self, asker: Asker, nodes: Mapping[str, int], victims: Iterable[Victim]) -> Kept:
        """The victims are given notice, and the placement is kept for the request."""
        present = self._present
        until = present.soon_at(asker.pool)
        for victim in victims:
            lease = victim.lease
            leaving = replace(lease, notice_until=until, notice_for=asker.request.id)
            present.running.put(leaving)
            present.room(lease.pool).notify(lease, leaving)
        self._keep(asker.request, asker.holding, asker.gpus, nodes, until)
        return self._kept[asker.request.id]

    def secure(self, asker: Asker, nodes: Mapping[str, int]) -> Kept:
        """What is free is kept for a request while it tries for more, in this pass."""
        now, said = self._present.now, self._present.room(asker.pool).said(nodes)
        lease = replace(asker.as_lease(now, said), id=f"{asker.request.id} (kept)")
        self._keep(asker.request, asker.holding, asker.gpus, nodes, now, lease)
        return self._kept[asker.request.id]

    def withdraw(self, request: Request) -> None:
        """Nothing is kept for the request any more."""
        kept = self._kept.pop(request.id, None)
        if kept is not None:
            present, pool = self._present, kept.holding.pool
            kept.take_out_of(present.room(pool))
            of_account, of_team = kept.adds
            present.accounts.promise(kept.holding, -of_account, -of_team)
            present.ceilings.give(request, pool, kept.gpus)
            present.running.changed(pool, request.team)

    def take_back(self, proposal: Preemption) -> None:
        """What a person was to be asked for is asked no more."""
        self.withdraw(proposal.request)
        running = self._present.running
        for victim in proposal.victims:
            leaving = running.of(victim.lease)
            self._present.room(leaving.pool).notify(leaving, victim.lease)
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
        lease: Lease | None = None,
    ) -> None:
        present, pool = self._present, holding.pool
        leaving = (
            each
            for each in present.running.of_team(request.team, pool)
            if each.notice_for == request.id
        )
        length = request.max_duration
        ends = None if length is None else ready + length
        of_account = self._of_account(holding, leaving)
        kept = Kept(request, holding, gpus, nodes, ends, of_account, lease)
        kept.put_in(present.room(pool))
        self._kept[request.id] = kept
        present.accounts.promise(holding, *kept.adds)
        present.ceilings.take(request, pool, gpus)
        present.running.changed(pool, request.team)

    def _kept_from(self, kept: Kept) -> int:
        """What is held back for others, or in a fast lane that it may not use."""
        present = self._present
        room = present.room(kept.holding.pool)
        in_lane = room.in_lane(kept.gpus, kept.request.max_duration)
        held_back = present.accounts.held_back_by_others(kept.holding)
        return held_back + (0 if in_lane else room.lane_left)

    def _of_account(self, holding: Holding, leases: Iterable[Lease]) -> tuple[int, int]:
        """GPUs of these leases that are the account's, and its team's."""
        own = of_team = 0
        for lease in leases:
            its = self._present.accounts.holding(lease, lease.pool)
            own += lease.gpus if its is holding else 0
            of_team += lease.gpus if its.team is holding.team else 0
        return own, of_team

    def _spare_victims(self, of: str) -> None:
        """Let those stay that were given notice for a promise that has ended, if no other needs them."""
        running = self._present.running
        leaving = [
            lease
            for pool in self._present.rooms
            for lease in running.in_pool(pool)
            if lease.notice_for == of and not lease.overdue
        ]
        for lease in sorted(leaving, key=lambda lease: (lease.started, lease.id)):
            room = self._present.room(lease.pool)
            spared = staying(lease)
            if not room.could_spare(lease, spared):
                continue
            came_true = self.surely_leave(lease.pool) >= 0
            room.notify(lease, spared)
            running.put(spared)
            if came_true and self.surely_leave(lease.pool) < 0:
                room.notify(spared, lease)
                running.put(lease)
            else:
                self.spared.add(lease.id)
