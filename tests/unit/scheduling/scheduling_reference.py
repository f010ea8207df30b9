"""The decision in its plainest form: after every start, every request is looked at again.

It shares no code with the product but its values, and recounts everything from the leases.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from dagster_gpufair.policy.models import Policy
from dagster_gpufair.scheduling.model import Account, Class, Lease, Points, Request, State

GPU = 1000
SECURED = "secured"
"""The source of what is kept for a request in the pass: it is no source's part of the use."""


@dataclass
class Started:
    request: Request
    pool: str
    gpus: int
    nodes: Mapping[str, int]
    class_: Class
    points: Points


@dataclass
class Reference:
    """What the plain loop found. ``line`` is what waits, best first, with the pool it waits in."""

    starts: list[Started] = field(default_factory=list)
    reasons: dict[str, str] = field(default_factory=dict)
    line: list[tuple[str, str]] = field(default_factory=list)


def decide(policy: Policy, state: State, now: float) -> Reference:
    found = Reference()
    assumed: dict[str, dict[str, int]] = {}
    secured: dict[str, Lease] = {}
    while True:
        open_to = []
        for request in state.requests:
            moment = Moment(policy, _beside(state, secured, request.id), now, assumed)
            choices = moment.all_that_can_start(request)
            if not choices:
                continue
            pool, gpus = choices[0]
            first = moment.class_of(request, pool, gpus)
            surer = [
                (its_pool, its_gpus)
                for its_pool, its_gpus in choices
                if moment.class_of(request, its_pool, its_gpus) < first is Class.BORROWING
            ]
            secures = bool(surer) and request.id not in secured
            if secures:
                pool, gpus = surer[0]
            open_to.append((moment.key(request, pool, gpus), request, pool, gpus, secures, moment))
        if not open_to:
            break
        _, request, pool, gpus, secures, moment = min(open_to, key=lambda entry: entry[0])
        nodes = moment.nodes_for(pool, gpus, request.gpus_per_node)
        kept = secured.get(request.id)
        if kept is not None and (kept.pool, kept.gpus) == (pool, gpus):
            nodes = kept.nodes
        if secures:
            id_ = f"{request.id} {SECURED}"
            secured[request.id] = Lease(
                id_, request.team, request.tier, pool, gpus, now, nodes, source=SECURED
            )
            continue
        secured.pop(request.id, None)
        class_ = moment.class_of(request, pool, gpus)
        points = moment.points(request, pool)
        found.starts.append(Started(request, pool, gpus, nodes, class_, points))
        state = _with_start(state, found.starts[-1], now)
    waiting = []
    moment = Moment(policy, state, now, assumed)
    for request in state.requests:
        pool, reason = moment.why_it_waits(request)
        found.reasons[request.id] = reason
        waiting.append((moment.key(request, pool, request.sizes[-1]), pool))
    found.line = [(key[-1], pool) for key, pool in sorted(waiting)]
    return found


def _beside(state: State, secured: Mapping[str, Lease], id_: str) -> State:
    """What is kept for others while they try for more is in use for a request."""
    kept = [lease for owner, lease in secured.items() if owner != id_]
    return replace(state, leases=[*state.leases, *kept])


def _with_start(state: State, start: Started, now: float) -> State:
    request = start.request
    lease = Lease(
        request.id,
        request.team,
        request.tier,
        start.pool,
        start.gpus,
        now,
        start.nodes,
        source=request.source,
    )
    return replace(
        state,
        requests=[other for other in state.requests if other.id != request.id],
        leases=[*state.leases, lease],
    )


class Moment:
    """All numbers of one moment, counted afresh whenever one is asked for."""

    def __init__(
        self,
        policy: Policy,
        state: State,
        now: float,
        assumed: dict[str, dict[str, int]] | None = None,
    ) -> None:
        """``assumed`` keeps, over several moments, where leases without nodes are."""
        self.policy, self.state, self.now = policy, state, now
        self._assumed = {} if assumed is None else assumed
        self.on_nodes = {pool: self._count_nodes(pool) for pool in policy.pools}

    # What is free

    def _count_nodes(self, pool: str) -> dict[str, int] | None:
        """Free GPUs on the ready nodes; what is used on no node counts under no name."""
        sizes = self.policy.pools[pool].nodes
        if sizes is None:
            return None
        away = self.state.cordoned.get(pool, frozenset())
        free = {"": 0} | {node: size for node, size in sizes.items() if node not in away}
        leases = [lease for lease in self.state.leases if lease.pool == pool]
        for lease in leases:
            for node, gpus in lease.nodes.items():
                if node in free:
                    free[node] -= gpus
        for lease in sorted(leases, key=lambda lease: (lease.started, lease.id)):
            if not lease.nodes:
                where = self._assumed.get(lease.id) or assume(lease.gpus, sizes, free)
                self._assumed[lease.id] = where
                for node, part in where.items():
                    free[node] -= part
        return free

    def free(self, pool: str) -> int:
        on_nodes = self.on_nodes[pool]
        if on_nodes is not None:
            return sum(on_nodes.values())
        used = sum(lease.gpus for lease in self.state.leases if lease.pool == pool)
        return self.policy.pools[pool].capacity - used

    def nodes_for(self, pool: str, gpus: int, per_node: int | None) -> dict[str, int] | None:
        sizes = self.policy.pools[pool].nodes
        if gpus > self.free(pool):
            return None
        if sizes is None:
            return {}
        free = {node: gpus for node, gpus in self.on_nodes[pool].items() if node}
        return place(gpus, per_node, sizes, free)

    # Whose it is

    def use(self, team: str, pool: str, source: str | None = None) -> int:
        return sum(
            lease.gpus
            for lease in self.state.leases
            if (lease.team, lease.pool) == (team, pool) and source in (None, lease.source)
        )

    def quota(self, team: str, pool: str) -> int:
        return self.policy.teams[team].quota.get(pool, 0) if team in self.policy.teams else 0

    def held_back(self, team: str, pool: str) -> int:
        quota = self.quota(team, pool)
        unlent = max(0, quota - self.policy.teams[team].lend_limit.get(pool, quota))
        quotas = sum(self.quota(other, pool) for other in self.policy.teams)
        sizes = self.policy.pools[pool].nodes
        away = self.state.cordoned.get(pool, frozenset()) if sizes else frozenset()
        ready = (
            sum(size for node, size in sizes.items() if node not in away)
            if sizes
            else self.policy.pools[pool].capacity
        )
        if ready < quotas:
            unlent = unlent * ready // quotas
        return max(0, unlent - self.use(team, pool))

    def held_back_by_others(self, team: str, pool: str) -> int:
        return sum(self.held_back(other, pool) for other in self.policy.teams if other != team)

    # Whether it may

    def class_of(self, request: Request, pool: str, gpus: int) -> Class:
        tier = self.policy.tiers.get(request.tier)
        if tier is not None and tier.may_preempt and request.team in self.policy.teams:
            return Class.URGENT
        covered = self.use(request.team, pool) + gpus <= self.quota(request.team, pool)
        return Class.GUARANTEED if covered else Class.BORROWING

    def rule_against(self, request: Request, pool: str, gpus: int) -> str | None:
        if request.team not in self.policy.teams or request.tier not in self.policy.tiers:
            return "quota_exhausted"
        if self.class_of(request, pool, gpus) is not Class.BORROWING:
            return None
        borrowing = self.policy.borrowing_rules(request.team, pool)
        limit = self.policy.teams[request.team].borrow_limit.get(pool)
        if (
            borrowing.mode == "off"
            or (borrowing.tiers != "all" and request.tier not in borrowing.tiers)
            or (borrowing.kinds != "all" and request.kind not in borrowing.kinds)
            or limit == 0
        ):
            return "quota_exhausted"
        overage = self.use(request.team, pool) + gpus - self.quota(request.team, pool)
        return "borrow_limit" if limit is not None and overage > limit else None

    def can_start(self, request: Request, pool: str, gpus: int) -> bool:
        return (
            request.id not in self.state.blocked
            and self.rule_against(request, pool, gpus) is None
            and gpus <= self.free(pool) - self.held_back_by_others(request.team, pool)
            and self.nodes_for(pool, gpus, request.gpus_per_node) is not None
        )

    def first_that_can_start(self, request: Request) -> tuple[str | None, int]:
        return next(iter(self.all_that_can_start(request)), (None, 0))

    def all_that_can_start(self, request: Request) -> list[tuple[str, int]]:
        return [
            (pool, gpus)
            for pool in request.pools
            for gpus in request.sizes
            if pool in self.policy.pools and self.can_start(request, pool, gpus)
        ]

    def why_it_waits(self, request: Request) -> tuple[str, str]:
        gpus = request.sizes[-1]
        known = [pool for pool in request.pools if pool in self.policy.pools]
        by_rule = {pool: self.rule_against(request, pool, gpus) for pool in known}
        open_pools = [pool for pool in known if by_rule[pool] is None]
        pool = (open_pools or known or list(request.pools))[0]
        if request.id in self.state.blocked:
            return pool, self.state.blocked[request.id][0]
        if not known:
            return pool, "environment"
        if not open_pools:
            return pool, by_rule[pool]
        uncordoned = Moment(self.policy, replace(self.state, cordoned={}), self.now)
        if self.state.cordoned and uncordoned.can_start(request, pool, gpus):
            return pool, "maintenance"
        if gpus > self.free(pool):
            return pool, "insufficient_gpus"
        if self.nodes_for(pool, gpus, request.gpus_per_node) is None:
            return pool, "fragmented"
        return pool, "reserve_held"

    # Who comes first

    def key(self, request: Request, pool: str, gpus: int) -> tuple[int, float, float, float, str]:
        class_ = self.class_of(request, pool, gpus)
        saturation = self.saturation(request.team, pool) if class_ is Class.BORROWING else 0.0
        score = self.points(request, pool).score
        return (class_, saturation, -score, request.submitted, request.id)

    def owed(self, team: str, pool: str) -> float:
        if team not in self.policy.teams:
            return 0.0
        used = self.state.used
        everything = math.fsum(hours for (_, its), hours in used.items() if its == pool)
        had = used.get((Account(team), pool), 0.0) / everything if everything else 0.0
        weights = math.fsum(other.weight for other in self.policy.teams.values())
        due = self.policy.teams[team].weight / weights
        return (due - had) / due

    def saturation(self, team: str, pool: str) -> float:
        overage = max(0, self.use(team, pool) - self.quota(team, pool))
        weight = 1.0
        if team in self.policy.teams:
            factor = 1 + self.policy.fair_share.strength * self.owed(team, pool)
            weight = self.policy.teams[team].weight * max(0.25, min(4.0, factor))
        return (overage + GPU) / GPU / weight

    def points(self, request: Request, pool: str) -> Points:
        rules, tier = self.policy.ordering, self.policy.tiers.get(request.tier)
        starts = [request.submitted]
        kept, held = self.use(request.team, pool, SECURED), 0
        use = self.use(request.team, pool) - kept
        if request.source is not None:
            its = (request.team, request.source)
            starts.append(self.state.source_starts.get(its, -math.inf))
            starts += [
                lease.started for lease in self.state.leases if (lease.team, lease.source) == its
            ]
            held = self.use(request.team, pool, request.source)
        waited = max(0.0, self.now - max(starts))
        deadline = 0.0
        if tier is not None and tier.start_within is not None:
            half = tier.start_within.total_seconds() / 2
            late = max(0.0, self.now - request.submitted - half)
            deadline = min(rules.deadline_points, rules.deadline_points * late / half)
        return Points(
            tier=tier.points if tier is not None else 0.0,
            wait=rules.wait_points_per_hour * waited / 3600,
            share=rules.share_points * max(-1.0, min(1.0, self.owed(request.team, pool))),
            preempted=rules.preempted_points * min(3, request.preempted),
            deadline=deadline,
            priority=rules.priority_points * max(-10, min(10, request.priority)),
            source=-rules.source_points * held / use if held else 0.0,
        )


def assume(gpus: int, sizes: Mapping[str, int], free: Mapping[str, int]) -> dict[str, int]:
    """Where GPUs without nodes are: as if placed now, else on the emptiest nodes."""
    nodes = {node: left for node, left in free.items() if node}
    where = place(gpus, None, sizes, nodes)
    if where is None:
        where = {}
        for node in sorted(nodes, key=lambda node: (nodes[node], node), reverse=True):
            where[node] = min(gpus - sum(where.values()), max(0, nodes[node]))
    return {**where, "": gpus - sum(where.values())}


def place(
    gpus: int, per_node: int | None, sizes: Mapping[str, int], free: Mapping[str, int]
) -> dict[str, int] | None:
    """GPUs by node. ``sizes`` are all nodes, ``free`` what is free on those that are ready."""
    if per_node:
        parts = [per_node] * (gpus // per_node) + [gpus % per_node] * (gpus % per_node > 0)
    elif gpus <= max(sizes.values()):
        parts = [gpus]
    else:
        parts = []
        idle = sorted((-sizes[node], node) for node in free if 0 < free[node] == sizes[node])
        for minus_size, _ in idle:
            if sum(parts) - minus_size <= gpus:
                parts.append(-minus_size)
            else:
                break
        taken = {node: -minus_size for minus_size, node in idle[: len(parts)]}
        left = {node: gpus for node, gpus in free.items() if node not in taken}
        return _tightest([gpus - sum(parts)] * (gpus > sum(parts)), left, taken)
    return _tightest(parts, free, {})


def _tightest(
    parts: list[int], free: Mapping[str, int], taken: dict[str, int]
) -> dict[str, int] | None:
    for part in parts:
        fitting = [(free[node], node) for node in free if free[node] >= part and node not in taken]
        if not fitting:
            return None
        taken = {**taken, min(fitting)[1]: part}
    return taken
