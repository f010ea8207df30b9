"""Policy and state made ready for one decision, and changed by it step by step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from dagster_gpufair.policy.in_force import Upcoming
from dagster_gpufair.policy.models import Policy, Pool
from dagster_gpufair.policy.quantities import ONE_GPU
from dagster_gpufair.scheduling.accounts import Accounts
from dagster_gpufair.scheduling.ahead import Ahead
from dagster_gpufair.scheduling.capacity import Room
from dagster_gpufair.scheduling.ceilings import Ceilings
from dagster_gpufair.scheduling.coverage import Borrowed, Coverage, Lent
from dagster_gpufair.scheduling.holding import Holding, Rights, rights_of
from dagster_gpufair.scheduling.horizon import Asker
from dagster_gpufair.scheduling.model import (
    Ageing,
    Class,
    Lease,
    Points,
    Request,
    State,
    Victim,
)
from dagster_gpufair.scheduling.order import NEVER, Order, Standing
from dagster_gpufair.scheduling.preemption import Preemption
from dagster_gpufair.scheduling.reservations import Reservations

_NO_ROOM = Room(Pool(gpus=0), ())


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


class Snapshot:
    """What a pass knows: who has what, what is free, and what the rules say about it.

    Only `start`, `promise`, `propose` and `withdraw` change it, and each of them the `version` of its pool.
    ``withdrawn`` are the requests whose promises could not come true.
    """

    def __init__(self, policy: Policy, state: State, now: float) -> None:
        self.policy = policy
        self.now = now
        self._versions: dict[str, int] = {}
        self._team_versions: dict[tuple[str, str], int] = {}
        self.order = Order(policy, now)
        self._leases: dict[str, dict[str, Lease]] = {}
        self._of_teams: dict[tuple[str, str], dict[str, Lease]] = {}
        for lease in state.leases:
            self._put(lease)
        soon = now + policy.preemption.grace.total_seconds()
        self.rooms = {
            name: Room(
                pool,
                self.leases_in(name),
                state.cordoned.get(name, frozenset()),
                policy.fast_lane.get(name),
                soon,
            )
            for name, pool in policy.pools.items()
        }
        ready = {name: room.ready for name, room in self.rooms.items()}
        self.accounts = Accounts(policy, state.leases, state.used, ready, now)
        self.ceilings = Ceilings(policy, state.leases)
        self.newest_start = _newest_starts(state.source_starts, state.leases)
        self.holds_gpus = {(lease.team, lease.source) for lease in state.leases}
        self.preemption = Preemption(self)
        self.reservations = Reservations(self)
        self._ahead = Ahead(self) if policy.windows else None
        self._coverage: dict[tuple[str, str], Coverage] = {}
        self._of_accounts: dict[Holding, tuple[int, list[Lease]]] = {}
        self._spoken_for: set[str] = set()
        self._proposed: set[str] = set()
        self._proposals: list[tuple[Asker, tuple[int, int]]] = []
        self._kept: dict[str, Kept] = {}
        self.withdrawn: list[str] = []
        self.spared: set[str] = set()
        self._pools: dict[tuple[str, ...], list[str]] = {}
        self._rights: dict[tuple[str, str, str | None], Rights | None] = {}
        self._promise_as_before(state.requests)

    # What is known

    def room(self, pool: str) -> Room:
        """The pool's room; a pool that is not in the policy has none."""
        return self.rooms.get(pool, _NO_ROOM)

    def leases_in(self, pool: str) -> Iterable[Lease]:
        """What runs in a pool, also what starts in this pass."""
        return self._leases.get(pool, {}).values()

    def leases_of(self, holding: Holding) -> list[Lease]:
        """What an account runs in its pool."""
        team, pool = holding.account.team, holding.pool
        version = self._team_versions.get((team, pool), 0)
        known, leases = self._of_accounts.get(holding, (-1, []))
        if known != version:
            leases = [
                lease
                for lease in self._of_team(team, pool)
                if self.accounts.holding(lease, pool) is holding
            ]
            self._of_accounts[holding] = (version, leases)
        return leases

    def slipped_in(self, request: Request, holding: Holding, gpus: int) -> int:
        """GPUs of smaller runs of the account that began while the request waits, and are bounded.

        They slipped in before it, and it waits for them: they do not make it less sure of its place.
        """
        if gpus <= ONE_GPU:
            return 0
        return sum(
            lease.gpus
            for lease in self.leases_of(holding)
            if lease.started >= request.submitted
            and lease.gpus < gpus
            and lease.max_duration is not None
        )

    @property
    def changes(self) -> int:
        """A number that changes whenever anything does in any pool."""
        return sum(self._versions.values())

    def version(self, pool: str) -> int:
        """A number that changes whenever anything does in the pool."""
        return self._versions.get(pool, 0)

    def promises_in(self, pool: str) -> list[Kept]:
        """What is kept in a pool for requests whose victims leave."""
        return [kept for kept in self._kept.values() if kept.holding.pool == pool]

    def kept_for(self, request: Request) -> Kept | None:
        """What is kept for the request."""
        return self._kept.get(request.id)

    def kept_by_id(self, id: str | None) -> Kept | None:
        """What is kept for a request, by its id."""
        return None if id is None else self._kept.get(id)

    def is_spoken_for(self, lease: Lease) -> bool:
        """Whether it starts in this pass, or is a victim that awaits approval."""
        return lease.id in self._spoken_for or lease.id in self._proposed

    def borrowed(self, team: str, pool: str) -> Borrowed:
        """Which of a team's leases in a pool are borrowed."""
        return self._covers(team, pool).borrowed

    def lent(self, lease: Lease) -> Lent:
        """Whether a lease is borrowed."""
        return self._covers(lease.team, lease.pool).lent(lease)

    def lent_to_the_end(self, lease: Lease) -> Lent:
        """Whether it will be once all that ends before it is gone."""
        return self._covers(lease.team, lease.pool).lent_to_the_end(lease)

    def pools(self, request: Request) -> list[str]:
        """Those of its pools that are in the policy, in order of liking."""
        pools = self._pools.get(request.pools)
        if pools is None:
            known = (pool for pool in dict.fromkeys(request.pools) if pool in self.rooms)
            pools = self._pools[request.pools] = list(known)
        return pools

    def rights(self, request: Request) -> Rights | None:
        """What it may do by its tier and kind; nothing if its team or tier is not in the policy."""
        key = (request.team, request.tier, request.kind)
        if key not in self._rights:
            known = request.team in self.policy.teams
            self._rights[key] = rights_of(self.policy, *key[1:]) if known else None
        return self._rights[key]

    def asker(self, request: Request, holding: Holding, gpus: int) -> Asker | None:
        """The request as it asks for so many GPUs in a pool; None if it has no rights at all."""
        rights = self.rights(request)
        if rights is None:
            return None
        class_ = holding.class_of(gpus, rights.urgent)
        return Asker(request, holding, gpus, class_, rights)

    def within_ceilings(self, asker: Asker) -> bool:
        """Whether no ceiling of its team keeps it from starting; what is promised to it counts already."""
        request = asker.request
        if request.id in self._kept:
            return True
        return self.ceilings.exceeded(request, asker.pool, asker.gpus) is None

    # What fits

    def surely_left(self, pool: str) -> tuple[float, float]:
        """How many GPUs of the pool anybody may take in all; and a size that, if whole, then fits a node."""
        if self._ahead is not None:
            return 0, 0
        room = self.room(pool)
        most, kept_nodes = self.reservations.surely_leave(pool)
        left = room.free - self.accounts.held_back.get(pool, 0) - room.lane_left
        most = min(most, left)
        return most, min(most, room.surely_fits(kept_nodes))

    def free_for(self, holding: Holding) -> int:
        """Free GPUs of the pool that are not held back for anybody else."""
        return self.room(holding.pool).free - self.accounts.held_back_by_others(holding)

    def left_for(self, asker: Asker) -> int:
        """Of those, the ones that the fast lane does not keep from it."""
        room = self.room(asker.pool)
        in_lane = room.lane is None or room.in_lane(asker.gpus, asker.request.max_duration)
        return self.free_for(asker.holding) - (0 if in_lane else room.lane_left)

    def place(self, asker: Asker) -> Mapping[str, int] | None:
        """The nodes it gets if it starts now, or None if it is space that is missing.

        What was promised to it comes first, once its victims have left.
        """
        kept = self._kept.get(asker.request.id)
        if kept is None or kept.holding.pool != asker.pool:
            return self._place(asker)
        if (kept.holding, kept.gpus) == (asker.holding, asker.gpus) and self._is_ready(kept):
            return kept.nodes
        # It may also start beside its victims, on what is kept for it and on other GPUs.
        room, request = self.room(asker.pool), asker.request
        room.unpromise(request.id, kept.nodes)
        try:
            return self._place(asker)
        finally:
            room.promise(request.id, kept.nodes, request.max_duration)

    def _place(self, asker: Asker) -> Mapping[str, int] | None:
        if asker.gpus > self.left_for(asker):
            return None
        room = self.room(asker.pool)
        if asker.gpus > self.most_before_windows(asker, self.now):
            return None
        if not self.reservations:
            return room.place(asker.gpus, asker.request.gpus_per_node)
        bound = self.reservations.limits(asker, self.now, room)
        if bound is None or asker.gpus > bound.most:
            return None
        return room.place(asker.gpus, asker.request.gpus_per_node, bound.on_nodes)

    def may_make_room_in(self, pool: str) -> bool:
        """Whether anything could still be reserved in the pool, or stopped for somebody."""
        return self.reservations.has_place(pool) or self.preemption.may_stop_in(pool)

    def is_held_back_only(self, asker: Asker) -> bool:
        """Whether it would fit but for what is held back for others."""
        if asker.gpus <= self.free_for(asker.holding):
            return False
        return self.room(asker.pool).place(asker.gpus, asker.request.gpus_per_node) is not None

    def _is_ready(self, kept: Kept) -> bool:
        """Whether its victims have left, and all of it is free beyond what is kept from it."""
        pool = kept.holding.pool
        room = self.room(pool)
        if any(lease.notice_for == kept.request.id for lease in self.leases_in(pool)):
            return False
        left = room.free_but_for(kept.request.id, kept.nodes) - self._kept_from(kept)
        return room.has_idle(kept.nodes) and kept.gpus <= left

    def _kept_from(self, kept: Kept) -> int:
        """What is held back for others, or in a fast lane that it may not use."""
        room = self.room(kept.holding.pool)
        in_lane = room.in_lane(kept.gpus, kept.request.max_duration)
        held_back = self.accounts.held_back_by_others(kept.holding)
        return held_back + (0 if in_lane else room.lane_left)

    def most_before_windows(
        self, asker: Asker, begins: float, freed: Iterable[Lease] = ()
    ) -> float:
        """What the windows to come let it take if it begins then, once ``freed`` are gone."""
        return float("inf") if self._ahead is None else self._ahead.most(asker, begins, freed)

    def windows_ahead(self, pool: str) -> Sequence[Upcoming]:
        """The windows of a pool that are still to come."""
        return () if self._ahead is None else self._ahead.windows(pool)

    def fits_but_for_what_is_kept(self, request: Request, holding: Holding, gpus: int) -> bool:
        """Whether it would fit were nothing reserved, promised, or kept in a lane or for a window."""
        room = self.room(holding.pool)
        if gpus > room.idle - self.accounts.held_back_by_others(holding):
            return False
        return room.could_place(gpus, request.gpus_per_node)

    # What changes

    def start(self, asker: Asker, nodes: Mapping[str, int]) -> None:
        """The request starts."""
        request, holding, gpus = asker.request, asker.holding, asker.gpus
        room = self.room(holding.pool)
        self.reservations.taken(asker, self.now, nodes)
        lease = asker.as_lease(self.now, room.said(nodes))
        self._put(lease)
        self._spoken_for.add(request.id)
        room.hold(lease, nodes)
        self.accounts.take(holding, gpus, request.source)
        self.ceilings.take(request, holding.pool, gpus)
        if request.source is not None:
            self.newest_start[request.team, request.source] = self.now
            self.holds_gpus.add((request.team, request.source))
        self._changed(holding.pool, request.team)

    def promise(self, asker: Asker, nodes: Mapping[str, int], victims: Iterable[Victim]) -> None:
        """The victims are given notice, and the placement is kept for the request."""
        until = self.now + self.preemption.grace
        self.reservations.taken(asker, until, nodes)
        for victim in victims:
            lease = victim.lease
            leaving = replace(lease, notice_until=until, notice_for=asker.request.id)
            self._put(leaving)
            self.spared.discard(lease.id)
            self.room(lease.pool).notify(lease, leaving)
            self._changed(lease.pool, lease.team)
        self._keep(asker.request, asker.holding, asker.gpus, nodes, until)

    def propose(self, asker: Asker, victims: Iterable[Victim]) -> None:
        """The victims await a person's approval, and nothing else is asked of them."""
        leases = [victim.lease for victim in victims]
        leaving = self._of_account(asker.holding, leases)
        adds = Kept(asker.request, asker.holding, asker.gpus, {}, None, leaving).adds
        self._proposed.update(lease.id for lease in leases)
        self._proposals.append((asker, adds))
        asker.holding.propose(*adds)
        self._changed(asker.pool, asker.request.team)

    def forget_proposals(self) -> None:
        """Nothing awaits approval."""
        for asker, (of_account, of_team) in self._proposals:
            asker.holding.propose(-of_account, -of_team)
            self._changed(asker.pool, asker.request.team)
        self._proposals.clear()
        self._proposed.clear()

    def start_elsewhere(self, asker: Asker, nodes: Mapping[str, int]) -> None:
        """It starts on other GPUs than those promised to it: its victims may stay."""
        self.start(asker, nodes)
        self.withdrawn.append(asker.request.id)
        self._spare_victims(asker.request.id)

    def withdraw(self, request: Request) -> None:
        """Nothing is kept for the request any more."""
        kept = self._kept.pop(request.id, None)
        if kept is not None:
            self.room(kept.holding.pool).unpromise(request.id, kept.nodes)
            self.accounts.promise(kept.holding, -kept.adds[0], -kept.adds[1])
            self.ceilings.give(request, kept.holding.pool, kept.gpus)
            self._changed(kept.holding.pool, request.team)

    # Points

    def source_of(self, request: Request) -> tuple[bool, float]:
        """Whether its source holds GPUs, and when it last started something."""
        if request.source is None:
            return False, NEVER
        source = (request.team, request.source)
        return source in self.holds_gpus, self.newest_start.get(source, NEVER)

    def matters(self, request: Request) -> bool:
        """Whether its source changes its points: it holds GPUs, or has started something since."""
        holds_gpus, since = self.source_of(request)
        return holds_gpus or since > request.submitted

    def ageing(self, request: Request) -> Ageing:
        """How the request gains from waiting."""
        if request.source is None:
            return self.order.ageing(request.tier)
        since = self.newest_start.get((request.team, request.source), NEVER)
        return self.order.ageing(request.tier, since if since > request.submitted else NEVER)

    def points(self, request: Request, holding: Holding, ageing: Ageing) -> Points:
        """All its points in its account's pool."""
        source = self.order.source_points(request.source, holding)
        return self.order.points(request, holding, ageing, source)

    def class_of(self, request: Request, holding: Holding, gpus: int) -> Class:
        """The class in which it would take so many GPUs, whether or not it may."""
        rights = self.rights(request)
        return holding.class_of(gpus, urgent=rights is not None and rights.urgent)

    def standing(self, request: Request, holding: Holding, gpus: int) -> Standing:
        """What the request is judged by if it takes so many GPUs in the pool."""
        return Standing(
            class_=self.class_of(request, holding, gpus),
            saturation=holding.saturation,
            points=self.points(request, holding, self.ageing(request)),
            submitted=request.submitted,
            id=request.id,
            inside=holding.inside,
        )

    def _spare_victims(self, of: str) -> None:
        """Let those stay that were given notice for a promise that has ended, if no other needs them."""
        leaving = [
            lease for pool in self.rooms for lease in self.leases_in(pool) if lease.notice_for == of
        ]
        for lease in sorted(leaving, key=lambda lease: (lease.started, lease.id)):
            room = self.room(lease.pool)
            staying = replace(lease, notice_until=None, notice_for=None)
            if room.could_spare(lease, staying):
                room.notify(lease, staying)
                self._put(staying)
                self._changed(lease.pool, lease.team)
                self.spared.add(lease.id)

    def _promise_as_before(self, requests: Iterable[Request]) -> None:
        """Keep what was promised in earlier passes, if it can still come true."""
        promised = [request for request in requests if request.promised is not None]
        for request in sorted(promised, key=lambda request: (request.submitted, request.id)):
            promise = request.promised
            assert promise is not None
            room = self.room(promise.pool)
            nodes = room.promised_nodes(promise)
            holding = self.accounts.holding(request, promise.pool)
            kept = Kept(request, holding, promise.gpus, nodes, None)
            if (
                self.rights(request) is None
                or not room.could_keep(nodes)
                or promise.gpus > room.free_at_last() - self._kept_from(kept)
            ):
                self.withdrawn.append(request.id)
                continue
            leaving = [
                lease.ends
                for lease in self.leases_in(promise.pool)
                if lease.ends is not None
                and room.is_leaving(lease)
                and room.where(lease).keys() & nodes.keys()
            ]
            ready = max([self.now, *leaving])
            self._keep(request, holding, sum(nodes.values()), nodes, ready)
        for id in self.withdrawn:
            self._spare_victims(id)

    def _keep(
        self,
        request: Request,
        holding: Holding,
        gpus: int,
        nodes: Mapping[str, int],
        ready: float,
    ) -> None:
        self.room(holding.pool).promise(request.id, nodes, request.max_duration)
        leaving = (
            lease
            for lease in self._of_team(request.team, holding.pool)
            if lease.notice_for == request.id
        )
        length = request.max_duration
        ends = None if length is None else ready + length
        kept = Kept(request, holding, gpus, nodes, ends, self._of_account(holding, leaving))
        self._kept[request.id] = kept
        self.accounts.promise(holding, *kept.adds)
        self.ceilings.take(request, holding.pool, gpus)
        self._changed(holding.pool, request.team)

    def _of_account(self, holding: Holding, leases: Iterable[Lease]) -> tuple[int, int]:
        """GPUs of these leases that are the account's, and its team's."""
        own = of_team = 0
        for lease in leases:
            its = self.accounts.holding(lease, lease.pool)
            own += lease.gpus if its is holding else 0
            of_team += lease.gpus if its.team is holding.team else 0
        return own, of_team

    def _covers(self, team: str, pool: str) -> Coverage:
        found = self._coverage.get((team, pool))
        if found is None:
            found = Coverage(self.policy, self.accounts, pool, self._of_team(team, pool))
            self._coverage[team, pool] = found
        return found

    def _of_team(self, team: str, pool: str) -> Iterable[Lease]:
        return self._of_teams.get((team, pool), {}).values()

    def _put(self, lease: Lease) -> None:
        """It runs, as it says."""
        self._leases.setdefault(lease.pool, {})[lease.id] = lease
        self._of_teams.setdefault((lease.team, lease.pool), {})[lease.id] = lease

    def _changed(self, pool: str, team: str) -> None:
        self._coverage.pop((team, pool), None)
        self._versions[pool] = self._versions.get(pool, 0) + 1
        self._team_versions[team, pool] = self._team_versions.get((team, pool), 0) + 1


def _newest_starts(
    remembered: Mapping[tuple[str, str], float], leases: Iterable[Lease]
) -> dict[tuple[str, str | None], float]:
    newest: dict[tuple[str, str | None], float] = dict(remembered.items())
    for lease in leases:
        if lease.source is not None:
            key = (lease.team, lease.source)
            newest[key] = max(lease.started, newest.get(key, NEVER))
    return newest
