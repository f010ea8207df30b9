"""What each pool has, and what becomes of it: facts for all commands that show pools."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dagster_gpufair.cli.moment.current import Moment
from dagster_gpufair.cli.moment.reservations import reservation_json
from dagster_gpufair.cli.output.json_output import gpus, iso
from dagster_gpufair.cli.output.text import plain
from dagster_gpufair.ledger.nodes import CordonedNode
from dagster_gpufair.ledger.state import where_it_counts
from dagster_gpufair.policy.models import FastLane
from dagster_gpufair.scheduling.model import Reservation


@dataclass(frozen=True)
class NodeUse:
    """GPUs of one node, in thousandths. One that is cordoned accepts no new runs."""

    gpus: int
    used: int
    free: int
    cordon: CordonedNode | None

    def as_json(self) -> dict[str, Any]:
        """Under the names of the fields, in GPUs."""
        return {
            "gpus": gpus(self.gpus),
            "used": gpus(self.used),
            "free": gpus(self.free),
            "cordoned": None if self.cordon is None else cordon_json(self.cordon),
        }


@dataclass(frozen=True)
class LaneUse:
    """A fast lane, and how much of it is free, in thousandths."""

    lane: FastLane
    free: int

    def as_json(self) -> dict[str, Any]:
        """Under the keys of the policy file, in GPUs."""
        return {
            "gpus": gpus(self.lane.gpus),
            "free": gpus(self.free),
            "max_gpus": gpus(self.lane.max_gpus),
            "max_duration_seconds": self.lane.max_duration.total_seconds(),
        }


@dataclass(frozen=True)
class PoolUse:
    """What one pool has and what becomes of it. GPU amounts in thousandths.

    ``borrowed`` is what teams use over their quotas. ``held_back`` is the part of ``free`` that teams do
    not lend, ``promised`` what is promised to requests whose victims are being stopped. Of a pool that is not
    in the policy, ``in_use`` is what was granted there, and ``counts_in`` the pools that have its nodes now.
    """

    name: str
    gpus: int
    ready: int
    in_use: int
    borrowed: int
    held_back: int
    promised: int
    free: int
    waiting: int
    lane: LaneUse | None
    nodes: Mapping[str, NodeUse] | None
    reservations: Sequence[Reservation]
    counts_in: Sequence[str] = ()

    @property
    def in_maintenance(self) -> int:
        """What of ``in_use`` is on nodes that accept no new runs."""
        nodes = (self.nodes or {}).values()
        return sum(node.used for node in nodes if node.cordon is not None)

    def as_json(self) -> dict[str, Any]:
        """Under the names of the fields, in GPUs."""
        return {
            "pool": self.name,
            "gpus": gpus(self.gpus),
            "ready": gpus(self.ready),
            "in_use": gpus(self.in_use),
            "borrowed": gpus(self.borrowed),
            "held_back": gpus(self.held_back),
            "promised": gpus(self.promised),
            "free": gpus(self.free),
            "waiting": self.waiting,
            "lane": None if self.lane is None else self.lane.as_json(),
            "nodes": None
            if self.nodes is None
            else {name: node.as_json() for name, node in self.nodes.items()},
            "reservations": [reservation_json(each) for each in self.reservations],
            "counts_in": list(self.counts_in),
        }


def pool_uses(moment: Moment) -> Sequence[PoolUse]:
    """All pools of the policy, and any other in which something is held or waits."""
    in_use: Counter[str] = Counter()
    for lease in moment.state.leases:
        if lease.pool in moment.policy.pools:
            in_use[lease.pool] += lease.gpus
    counts_in: dict[str, set[str]] = {}
    for record in moment.leases:
        if record.pool not in moment.policy.pools:
            in_use[record.pool] += record.gpus
            parts = where_it_counts(moment.policy, record.to_lease(moment.now))
            pools = {part.pool for part in parts} - {record.pool}
            counts_in.setdefault(record.pool, set()).update(pools)
    names = dict.fromkeys([*moment.policy.pools, *sorted({*in_use, *moment.lines})])
    uses = []
    for name in names:
        room = moment.snapshot.room(name)
        pool = moment.policy.pools.get(name)
        free = max(0, room.idle)
        uses.append(
            PoolUse(
                name=name,
                gpus=pool.capacity if pool else 0,
                ready=room.ready,
                in_use=in_use[name],
                borrowed=moment.borrowed_in(name),
                held_back=min(moment.snapshot.accounts.held_back(name), free),
                promised=sum(each.gpus for each in moment.snapshot.promises.in_pool(name)),
                free=free,
                waiting=len(moment.lines.get(name, ())),
                lane=None if room.lane is None else LaneUse(room.lane, min(room.lane_left, free)),
                nodes=_nodes(moment, name),
                reservations=moment.reservations_in(name),
                counts_in=sorted(counts_in.get(name, ())),
            )
        )
    return uses


def counts_in_words(use: PoolUse) -> str:
    """``; its nodes are in ampere now``, of a pool that is no more while work goes on on its nodes."""
    if not use.counts_in:
        return ""
    return f"; its nodes are in {' and '.join(plain(name) for name in use.counts_in)} now"


def _nodes(moment: Moment, pool: str) -> Mapping[str, NodeUse] | None:
    room = moment.snapshot.room(pool)
    if not room.named:
        return None
    cordons = {each.node: each for each in moment.cordons if each.pool == pool}
    named: Counter[str] = Counter()
    for lease in moment.state.leases:
        if lease.pool == pool:
            named.update(lease.nodes)
    uses = {}
    for name, size in room.nodes.sizes.items():
        cordon = cordons.get(name)
        used = size - room.nodes.free[name] if cordon is None else named[name]
        uses[name] = NodeUse(size, used, max(0, size - used) if cordon is None else 0, cordon)
    return uses


def cordon_json(cordon: CordonedNode) -> dict[str, Any]:
    """Who took it into maintenance, when and why, for programs."""
    return {
        "pool": cordon.pool,
        "node": cordon.node,
        "since": iso(cordon.cordoned_at),
        "by": cordon.by,
        "reason": cordon.reason or None,
    }
