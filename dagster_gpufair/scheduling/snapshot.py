"""Policy and state made ready for one decision: rooms, holdings, points."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dagster_gpufair.policy.models import Policy, Pool
from dagster_gpufair.scheduling.accounts import Accounts, Holding
from dagster_gpufair.scheduling.capacity import Room
from dagster_gpufair.scheduling.model import Ageing, Lease, Request, State
from dagster_gpufair.scheduling.order import NEVER, Order, Standing

NO_POOL = Room(Pool(gpus=0), (), frozenset())


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

    def room(self, pool: str) -> Room:
        """The pool's room; a pool that is not in the policy has none."""
        return self.rooms.get(pool, NO_POOL)

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
            self.holds_gpus.add((request.team, request.source))

    def ageing(self, request: Request) -> Ageing:
        """How the request gains from waiting."""
        if request.source is None:
            return self.order.ageing(request.tier)
        since = self.newest_start.get((request.team, request.source), NEVER)
        return self.order.ageing(request.tier, since)

    def standing(self, request: Request, holding: Holding, gpus: int) -> Standing:
        """What the request is judged by if it takes so many GPUs in the pool."""
        tier = self.policy.tiers.get(request.tier)
        source = self.order.source_points(request.source, holding)
        return Standing(
            class_=holding.class_of(gpus, urgent=tier is not None and tier.may_preempt),
            saturation=holding.saturation,
            points=self.order.points(request, holding, self.ageing(request), source),
            submitted=request.submitted,
            id=request.id,
        )


def _newest_starts(
    remembered: Mapping[tuple[str, str], float], leases: Iterable[Lease]
) -> dict[tuple[str, str], float]:
    newest = dict(remembered)
    for lease in leases:
        if lease.source is not None:
            key = (lease.team, lease.source)
            newest[key] = max(lease.started, newest.get(key, NEVER))
    return newest
