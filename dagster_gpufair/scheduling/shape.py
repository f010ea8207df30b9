"""Which nodes a request gets: the shape of its GPUs on the nodes of a pool.

What fits on one node of the pool goes on one node. What is larger takes whole idle nodes and one rest.
``per_node`` fixes the split instead: so many on each of several nodes, and one rest. Among the nodes
that fit, the one with the least free GPUs is taken, then by name, so that whole nodes stay free for
the large.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping


class Nodes:
    """The nodes of a pool and what is free on those that take new work.

    ``sizes`` are all nodes, also those in maintenance: the shape of a request does not change
    while a node is away.
    """

    def __init__(self, sizes: Mapping[str, int], free: Mapping[str, int]) -> None:
        self.sizes = sizes
        self.largest = max(sizes.values(), default=0)
        self.free = dict(free)
        self.by_free = sorted((gpus, node) for node, gpus in free.items())

    def place(self, gpus: int, per_node: int | None) -> dict[str, int] | None:
        """GPUs by node, or None if the nodes cannot give this shape now."""
        if per_node:
            return self._on_equal_parts(gpus, per_node)
        if gpus <= self.largest:
            return self._on_one_node(gpus)
        return self._on_whole_nodes(gpus)

    def take(self, nodes: Mapping[str, int]) -> None:
        """Use these GPUs."""
        for node, part in nodes.items():
            free = self.free[node]
            del self.by_free[bisect_left(self.by_free, (free, node))]
            self.free[node] = free - part
            insort(self.by_free, (free - part, node))

    def likely(self, gpus: int) -> Mapping[str, int]:
        """Where GPUs are used that nobody named nodes for: as if placed now, else the emptiest nodes."""
        nodes = self.place(gpus, None)
        if nodes is not None:
            return nodes
        spread = {}
        for free, node in reversed(self.by_free):
            part = min(gpus, free)
            if part <= 0:
                break
            spread[node] = part
            gpus -= part
        return spread

    def _on_one_node(self, gpus: int) -> dict[str, int] | None:
        at = bisect_left(self.by_free, (gpus, ""))
        return {self.by_free[at][1]: gpus} if at < len(self.by_free) else None

    def _on_equal_parts(self, gpus: int, per_node: int) -> dict[str, int] | None:
        parts, rest = divmod(gpus, per_node)
        at = bisect_left(self.by_free, (per_node, ""))
        nodes = {node: per_node for _, node in self.by_free[at : at + parts]}
        return self._with_rest(nodes, rest) if len(nodes) == parts else None

    def _on_whole_nodes(self, gpus: int) -> dict[str, int] | None:
        """Largest first, until what is left is a rest that one node can give."""
        idle = [(-size, node) for size, node in self.by_free if 0 < size == self.sizes[node]]
        nodes: dict[str, int] = {}
        rest = gpus
        for minus_size, node in sorted(idle):
            if rest < -minus_size:
                break
            nodes[node] = -minus_size
            rest += minus_size
        return self._with_rest(nodes, rest)

    def _with_rest(self, nodes: dict[str, int], rest: int) -> dict[str, int] | None:
        if not rest:
            return nodes
        for at in range(bisect_left(self.by_free, (rest, "")), len(self.by_free)):
            node = self.by_free[at][1]
            if node not in nodes:
                return {**nodes, node: rest}
        return None
