"""Policy and state made ready for one decision: rooms, holdings, rights, points."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dagster_gpufair.policy.models import Policy, Pool
from dagster_gpufair.scheduling.accounts import Accounts, Holding, Rights, rights_of
from dagster_gpufair.scheduling.capacity import Room
from dagster_gpufair.scheduling.model import Ageing, Class, Lease, Points, Request, State
from dagster_gpufair.scheduling.order import NEVER, Order, Standing

_NO_ROOM = Room(Pool(gpus=0), (), frozenset())


class Snapshot:
    """What a pass knows. Starts are the only thing that changes it, by `take`."""

    def __init__(self, policy: Policy, state: State, now: float) -> None:
        self.policy = policy
        self.now = now
        self.order = Order(policy, now)
        by_pool: dict[str, list[Lease]] = {}
        for lease in state.leases:
            by_pool.setdefault(lease.pool, []).append(lease)
        self.rooms = {
            name: Room(pool, by_pool.get(name, ()), state.cordoned.get(name, frozenset()))
            for name, pool in policy.pools.items()
        }
        ready = {name: room.ready for name, room in self.rooms.items()}
        self.accounts = Accounts(policy, state.leases, state.used, ready)
        self.newest_start = _newest_starts(state.source_starts, state.leases)
        self.holds_gpus = {(lease.team, lease.source) for lease in state.leases}
        self._pools: dict[tuple[str, ...], list[str]] = {}
        self._rights: dict[tuple[str, str | None], Rights | None] = {}

    def room(self, pool: str) -> Room:
        """The pool's room; a pool that is not in the policy has none."""
        return self.rooms.get(pool, _NO_ROOM)

    def pools(self, request: Request) -> list[str]:
        """Those of its pools that are in the policy, in order of liking."""
        pools = self._pools.get(request.pools)
        if pools is None:
            known = (pool for pool in dict.fromkeys(request.pools) if pool in self.rooms)
            pools = self._pools[request.pools] = list(known)
        return pools

    def rights(self, request: Request) -> Rights | None:
        """What it may do by its tier and kind; nothing if its team or tier is not in the policy."""
        if request.team not in self.policy.teams:
            return None
        key = (request.tier, request.kind)
        if key not in self._rights:
            self._rights[key] = rights_of(self.policy, *key)
        return self._rights[key]

    def free_for_anybody(self, pool: str) -> int:
        """Free GPUs of the pool that are not held back at all."""
        return self.room(pool).free - self.accounts.held_back.get(pool, 0)

    def free_for(self, holding: Holding) -> int:
        """Free GPUs of the pool that are not held back for anybody else."""
        return self.room(holding.pool).free - self.accounts.held_back_by_others(holding)

    def place(self, holding: Holding, gpus: int, per_node: int | None) -> Mapping[str, int] | None:
        """The nodes the account would get them on, or None if it is space that is missing."""
        if gpus > self.free_for(holding):
            return None
        return self.room(holding.pool).place(gpus, per_node)

    def take(self, request: Request, holding: Holding, gpus: int, nodes: Mapping[str, int]) -> None:
        """The request starts."""
        self.room(holding.pool).take(gpus, nodes)
        self.accounts.take(holding, gpus, request.source)
        if request.source is not None:
            self.newest_start[request.team, request.source] = self.now

    def matters(self, request: Request) -> bool:
        """Whether its source changes its points: it holds GPUs, or has started something since."""
        source = (request.team, request.source)
        return source in self.holds_gpus or self.newest_start.get(source, NEVER) > request.submitted

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
