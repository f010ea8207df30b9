"""What is: who has what and what is free at one moment, and how starts change it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from dagster_gpufair.policy.models import Policy, Pool
from dagster_gpufair.policy.quantities import ONE_GPU
from dagster_gpufair.scheduling.accounts.accounts import Accounts
from dagster_gpufair.scheduling.accounts.asker import Asker
from dagster_gpufair.scheduling.accounts.balance import Balance
from dagster_gpufair.scheduling.accounts.ceilings import Ceilings
from dagster_gpufair.scheduling.accounts.holding import Holding, Rights, rights_of
from dagster_gpufair.scheduling.accounts.running import Running
from dagster_gpufair.scheduling.model import (
    Ageing,
    Cards,
    Class,
    Lease,
    Points,
    Request,
    State,
)
from dagster_gpufair.scheduling.order import NEVER, Order, Standing
from dagster_gpufair.scheduling.space.cards import FreeCards
from dagster_gpufair.scheduling.space.room import Room

_NO_ROOM = Room(Pool(gpus=0), ())


class Present:
    """Policy and state made ready for one decision. Only `count` changes it here."""

    def __init__(self, policy: Policy, state: State, now: float) -> None:
        self.policy = policy
        self.now = now
        self._grace = {name: policy.grace(name) for name in policy.pools}
        self.order = Order(policy, now)
        leases = [self._believed(lease) for lease in state.leases]
        in_pools: dict[str, list[Lease]] = {}
        for lease in leases:
            in_pools.setdefault(lease.pool, []).append(lease)
        self.rooms = {
            name: Room(
                pool,
                in_pools.get(name, ()),
                state.cordoned.get(name, frozenset()),
                policy.fast_lane.get(name),
                self.soon_at(name),
            )
            for name, pool in policy.pools.items()
        }
        self._cards = {name: FreeCards(in_pools.get(name, ())) for name in policy.pools}
        ready = {name: room.ready for name, room in self.rooms.items()}
        self.accounts = Accounts(policy, leases, state.used, ready, now)
        self.running = Running(policy, leases, self.accounts)
        self.ceilings = Ceilings(policy, leases)
        self.newest_start = _newest_starts(state.source_starts, leases)
        self.holds_gpus = {(lease.team, lease.source) for lease in leases}
        self._started: set[str] = set()
        self._soon: dict[str, Balance] = {}
        self._pools: dict[tuple[str, ...], list[str]] = {}
        self._rights: dict[tuple[str, str, str, str | None], Rights | None] = {}

    def _believed(self, lease: Lease) -> Lease:
        """An end that is long overdue is no longer believed in: nobody knows when it is gone."""
        overdue = lease.ends is not None and lease.ends < self.now - self.grace(lease.pool)
        return replace(lease, overdue=True) if overdue else lease

    def grace(self, pool: str) -> float:
        """Seconds between a notice in a pool and the stop."""
        grace = self._grace.get(pool)
        return self.policy.grace(pool) if grace is None else grace

    def soon_at(self, pool: str) -> float:
        """When somebody who is given notice now in a pool has to be gone."""
        return self.now + self.grace(pool)

    def room(self, pool: str) -> Room:
        """The pool's room; a pool that is not in the policy has none."""
        return self.rooms.get(pool, _NO_ROOM)

    def slipped_in(self, request: Request, holding: Holding, gpus: int) -> int:
        """GPUs of smaller runs of the account that began while the request waits, and are bounded.

        They slipped in before it, and it waits for them: they cost it nothing of its guarantee.
        """
        if gpus <= ONE_GPU:
            return 0
        return sum(
            lease.gpus
            for lease in self.running.of_account(holding)
            if lease.started >= request.submitted
            and lease.gpus < gpus
            and lease.max_duration is not None
        )

    def is_spoken_for(self, lease: Lease) -> bool:
        """Whether it starts in this pass."""
        return lease.id in self._started

    def pools(self, request: Request) -> list[str]:
        """Those of its pools that are in the policy, in order of liking."""
        pools = self._pools.get(request.pools)
        if pools is None:
            known = (pool for pool in dict.fromkeys(request.pools) if pool in self.rooms)
            pools = self._pools[request.pools] = list(known)
        return pools

    def rights(self, request: Request, pool: str) -> Rights | None:
        """What it may do in a pool by its tier and kind; nothing if its team or tier is not in the policy."""
        key = (request.team, pool, request.tier, request.kind)
        if key not in self._rights:
            known = request.team in self.policy.teams
            self._rights[key] = rights_of(self.policy, *key) if known else None
        return self._rights[key]

    def asker(self, request: Request, holding: Holding, gpus: int) -> Asker | None:
        """The request as it asks for so many GPUs in a pool; None if it has no rights at all."""
        rights = self.rights(request, holding.pool)
        if rights is None:
            return None
        class_ = holding.class_of(gpus, rights.urgent)
        return Asker(request, holding, gpus, class_, rights)

    def free_for(self, holding: Holding) -> int:
        """Free GPUs of the pool that are not held back for anybody else."""
        return self.room(holding.pool).free - self.accounts.held_back_by_others(holding)

    def left_for(self, asker: Asker) -> int:
        """Of those, the ones that the fast lane does not keep from it."""
        room = self.room(asker.pool)
        in_lane = room.lane is None or room.in_lane(asker.gpus, asker.request.max_duration)
        return self.free_for(asker.holding) - (0 if in_lane else room.lane_left)

    def is_held_back_only(self, asker: Asker) -> bool:
        """Whether it would fit but for what is held back for others."""
        if asker.gpus <= self.free_for(asker.holding):
            return False
        return self.room(asker.pool).place(asker.gpus, asker.request.gpus_per_node) is not None

    def fits_but_for_what_is_kept(self, request: Request, holding: Holding, gpus: int) -> bool:
        """Whether it would fit were nothing reserved, promised, or kept in a lane or for a window."""
        room = self.room(holding.pool)
        held_back = self.accounts.held_back_by_others(holding)
        if gpus > room.idle - held_back:
            return False
        return room.could_place(gpus, request.gpus_per_node, held_back)

    def cards_for(self, asker: Asker, nodes: Mapping[str, int]) -> Cards:
        """The cards that it gets there, if it starts now."""
        return self._cards[asker.pool].take(self.room(asker.pool).nodes, nodes)

    def count(self, asker: Asker, nodes: Mapping[str, int], cards: Cards) -> None:
        """The request starts, on these cards."""
        request, holding, gpus = asker.request, asker.holding, asker.gpus
        room = self.room(holding.pool)
        lease = asker.as_lease(self.now, room.said(nodes), cards)
        self._started.add(request.id)
        room.hold(lease, nodes)
        self.accounts.take(holding, gpus, request.source)
        self.ceilings.take(request, holding.pool, gpus)
        if request.source is not None:
            self.newest_start[request.team, request.source] = self.now
            self.holds_gpus.add((request.team, request.source))
        self.running.put(lease)

    def soon(self, pool: str) -> Balance:
        """The accounts of a pool when somebody who is given notice now has to be gone."""
        if pool not in self._soon:
            balance = Balance(self.accounts, pool)
            key = self.accounts.entitlements.key(pool, self.soon_at(pool))
            balance.come_into_force(key)
            self._soon[pool] = balance
        return self._soon[pool]

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
        rights = self.rights(request, holding.pool)
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


def _newest_starts(
    remembered: Mapping[tuple[str, str], float], leases: Iterable[Lease]
) -> dict[tuple[str, str | None], float]:
    newest: dict[tuple[str, str | None], float] = dict(remembered.items())
    for lease in leases:
        if lease.source is not None:
            key = (lease.team, lease.source)
            newest[key] = max(lease.started, newest.get(key, NEVER))
    return newest
