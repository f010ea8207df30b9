"""How many GPUs are free in a pool, and on each of its nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dagster_gpufair.policy.models import Pool
from dagster_gpufair.scheduling.model import Lease
from dagster_gpufair.scheduling.shape import Nodes


class Room:
    """The free GPUs of one pool: what its ready nodes have, less what is used on them.

    Cordoned nodes take nothing new and count for nothing here. Use above what a pool has (it shrank)
    leaves less than nothing free. In a pool without nodes, shape does not matter.
    """

    def __init__(self, pool: Pool, leases: Iterable[Lease], cordoned: frozenset[str]) -> None:
        self.nodes: Nodes | None = None
        if pool.nodes is None:
            self.ready = pool.capacity
            self.free = self.ready - sum(lease.gpus for lease in leases)
            return
        left = {node: size for node, size in pool.nodes.items() if node not in cordoned}
        self.ready = sum(left.values())
        unnamed = []
        for lease in leases:
            if not lease.nodes:
                unnamed.append(lease)
            for node, gpus in lease.nodes.items():
                if node in left:
                    left[node] -= gpus
        self.free = sum(left.values())
        self.nodes = Nodes(pool.nodes, left)
        for lease in sorted(unnamed, key=lambda lease: (lease.started, lease.id)):
            self.take(lease.gpus, self.nodes.likely(lease.gpus))

    def place(self, gpus: int, per_node: int | None) -> Mapping[str, int] | None:
        """The nodes such a request would get (none in a pool without), or None if it does not fit."""
        if gpus > self.free:
            return None
        return {} if self.nodes is None else self.nodes.place(gpus, per_node)

    def surely_fits(self) -> int:
        """A size that fits on one node, like any smaller one."""
        if self.nodes is None:
            return self.free
        most = self.nodes.by_free[-1][0] if self.nodes.by_free else 0
        return min(self.free, most)

    def take(self, gpus: int, nodes: Mapping[str, int]) -> None:
        """Use so many GPUs, on these nodes."""
        self.free -= gpus
        if self.nodes is not None:
            self.nodes.take(nodes)
