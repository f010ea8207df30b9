"""Which nodes a request gets: the shape of its GPUs on the nodes of a pool.

What fits on one node of the pool goes on one node. What is larger takes whole idle nodes and one rest.
``per_node`` fixes the split instead: so many on each of several nodes, and one rest. Among the nodes
that fit, the one with the least free GPUs is taken, then by name, so that whole nodes stay free for
the large. A fraction of a GPU lies on one card, which others' fractions may share.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache

from dagster_gpufair.policy.quantities import ONE_GPU

MayTake = Callable[[str, int], bool]
"""Whether so many GPUs of a node may be taken, free as they are."""


class Nodes:
    """The nodes of a pool and what is free on those that take new work.

    ``sizes`` are all nodes, also those in maintenance: the shape of a request does not change
    while a node is away. ``free`` is less than nothing on a node that holds more than it has.
    """

    def __init__(self, sizes: Mapping[str, int], ready: Mapping[str, int]) -> None:
        self.sizes = sizes
        self.largest = max(sizes.values(), default=0)
        self.free = dict(ready)
        self.by_free = sorted((gpus, node) for node, gpus in ready.items())
        self._idle = sorted((-gpus, node) for node, gpus in ready.items() if gpus > 0)
        self._fractions: dict[str, list[int]] = {}
        self._in_vain: set[tuple[int, int | None]] = set()

    def copy(self) -> Nodes:
        """The same, to try something on."""
        other = Nodes.__new__(Nodes)
        other.sizes, other.largest = self.sizes, self.largest
        other.free, other.by_free = dict(self.free), list(self.by_free)
        other._idle = list(self._idle)
        other._fractions = {node: list(parts) for node, parts in self._fractions.items()}
        other._in_vain = set(self._in_vain)
        return other

    def place(
        self, gpus: int, per_node: int | None, may_take: MayTake | None = None
    ) -> dict[str, int] | None:
        """GPUs by node, or None if the nodes cannot give this shape now."""
        # While GPUs are only taken, what could not be placed cannot be placed later.
        if (gpus, per_node) in self._in_vain:
            return None
        if per_node:
            nodes = self._on_equal_parts(gpus, per_node, may_take)
        elif gpus <= self.largest:
            nodes = self._with_rest({}, gpus, may_take)
        else:
            nodes = self._on_whole_nodes(gpus, may_take)
        if nodes is None and may_take is None:
            self._in_vain.add((gpus, per_node))
        return nodes

    def take(self, nodes: Mapping[str, int]) -> None:
        """Use these GPUs."""
        for node, part in nodes.items():
            self._change(node, -part)
            if part % ONE_GPU:
                insort(self._fractions.setdefault(node, []), part % ONE_GPU)

    def give(self, nodes: Mapping[str, int]) -> None:
        """Free these GPUs again, as they were taken."""
        self._in_vain.clear()
        for node, part in nodes.items():
            self._change(node, part)
            if part % ONE_GPU:
                self._fractions[node].remove(part % ONE_GPU)

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

    def fits(self, node: str, gpus: int) -> bool:
        """Whether so many can be taken of a node: whole cards, and a fraction on one card."""
        free = self.free[node]
        if free < gpus:
            return False
        whole, fraction = divmod(gpus, ONE_GPU)
        fractions = self._fractions.get(node)
        if not fractions and not fraction:
            return True
        others = fractions or []
        whole_used = self.sizes[node] - free - sum(others)
        cards = cards_for((*others, fraction) if fraction else tuple(others))
        return whole_used + (whole + cards) * ONE_GPU <= self.sizes[node]

    def cards_taken(self, node: str, gpus: int) -> int:
        """How many untouched cards so many GPUs of a node would take."""
        whole, fraction = divmod(gpus, ONE_GPU)
        if not fraction:
            return whole
        shared = tuple(self._fractions.get(node, ()))
        return whole + cards_for((*shared, fraction)) - cards_for(shared)

    @property
    def untouched(self) -> int:
        """The cards of which nothing is used, on nodes that take new work."""
        return sum(self._untouched_on(node) for node in self.free)

    def _untouched_on(self, node: str) -> int:
        shared = self._fractions.get(node)
        if not shared:
            return max(0, self.free[node]) // ONE_GPU
        whole_used = self.sizes[node] - self.free[node] - sum(shared)
        return max(0, (self.sizes[node] - whole_used) // ONE_GPU - cards_for(tuple(shared)))

    @property
    def has_fractions(self) -> bool:
        """Whether any card is used in part."""
        return any(self._fractions.values())

    def _change(self, node: str, by: int) -> None:
        free = self.free[node]
        del self.by_free[bisect_left(self.by_free, (free, node))]
        self.free[node] = free + by
        insort(self.by_free, (free + by, node))
        size = self.sizes[node]
        if free == size and size > 0:
            del self._idle[bisect_left(self._idle, (-size, node))]
        elif free + by == size and size > 0:
            insort(self._idle, (-size, node))

    def _able(self, gpus: int, may_take: MayTake | None) -> Iterator[str]:
        """The nodes that can give so many, the one with the least free GPUs first."""
        for at in range(bisect_left(self.by_free, (gpus, "")), len(self.by_free)):
            node = self.by_free[at][1]
            if self.fits(node, gpus) and (may_take is None or may_take(node, gpus)):
                yield node

    def _on_equal_parts(
        self, gpus: int, per_node: int, may_take: MayTake | None
    ) -> dict[str, int] | None:
        parts, rest = divmod(gpus, per_node)
        nodes: dict[str, int] = {}
        if parts:
            for node in self._able(per_node, may_take):
                nodes[node] = per_node
                if len(nodes) == parts:
                    break
        return self._with_rest(nodes, rest, may_take) if len(nodes) == parts else None

    def _on_whole_nodes(self, gpus: int, may_take: MayTake | None) -> dict[str, int] | None:
        """Largest first, until what is left is a rest that one node can give."""
        nodes: dict[str, int] = {}
        rest = gpus
        for minus_size, node in self._idle:
            if rest < -minus_size:
                break
            if may_take is None or may_take(node, -minus_size):
                nodes[node] = -minus_size
                rest += minus_size
        return self._with_rest(nodes, rest, may_take) if rest <= self.largest else None

    def _with_rest(
        self, nodes: dict[str, int], rest: int, may_take: MayTake | None
    ) -> dict[str, int] | None:
        if not rest:
            return nodes
        for node in self._able(rest, may_take):
            if node not in nodes:
                nodes[node] = rest
                return nodes
        return None


@lru_cache(maxsize=4096)
def cards_for(fractions: tuple[int, ...]) -> int:
    """How many cards some fractions of a GPU lie on: the larger first, each on the first that has room.

    It depends on nothing but the fractions, so that the same work always takes the same cards.
    """
    free: list[int] = []
    for fraction in sorted(fractions, reverse=True):
        for card, left in enumerate(free):
            if fraction <= left:
                free[card] = left - fraction
                break
        else:
            free.append(ONE_GPU - fraction)
    return len(free)
