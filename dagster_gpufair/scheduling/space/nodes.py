"""Which nodes a request gets: the shape of its GPUs on the nodes of a pool.

What fits on one node of the pool goes on one node. What is larger takes whole idle nodes and one rest.
``per_node`` fixes the split instead: so many on each of several nodes, and one rest. Among the nodes
that fit, the one with the least free GPUs is taken, then by name, so that whole nodes stay free for
the large. A fraction of a GPU lies on one card, which others' fractions may share: on a card that is
shared already if one has room, else on another.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

from dagster_gpufair.policy.quantities import ONE_GPU
from dagster_gpufair.scheduling.model import Cards

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
        self._shared: dict[str, Shared] = {}
        self._in_vain: set[tuple[int, int | None]] = set()

    def copy(self) -> Nodes:
        """The same, to try something on."""
        other = Nodes.__new__(Nodes)
        other.sizes, other.largest = self.sizes, self.largest
        other.free, other.by_free = dict(self.free), list(self.by_free)
        other._idle = list(self._idle)
        other._shared = {node: shared.copy() for node, shared in self._shared.items()}
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

    def take(self, nodes: Mapping[str, int], cards: Cards | None = None) -> None:
        """Use these GPUs, on these cards if that is known."""
        for node, part in nodes.items():
            self._change(node, -part)
            if cards and node in cards:
                for card, gpus in cards[node]:
                    if gpus % ONE_GPU:
                        self._shared.setdefault(node, Shared({}, [])).use(card, gpus)
            elif part % ONE_GPU:
                insort(self._shared.setdefault(node, Shared({}, [])).fractions, part % ONE_GPU)

    def give(self, nodes: Mapping[str, int], cards: Cards | None = None) -> None:
        """Free these GPUs again, as they were taken."""
        self._in_vain.clear()
        for node, part in nodes.items():
            self._change(node, part)
            if cards and node in cards:
                for card, gpus in cards[node]:
                    if gpus % ONE_GPU:
                        self._shared[node].use(card, -gpus)
            elif part % ONE_GPU:
                self._shared[node].fractions.remove(part % ONE_GPU)

    def shared_card(self, node: str, fraction: int) -> int | None:
        """The shared card that a fraction of a GPU goes on; None if it takes another."""
        shared = self._shared.get(node)
        return None if shared is None else shared.card_for(fraction)

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
        shared = self._shared.get(node, _NONE)
        if not shared.used and not fraction:
            return True
        whole_used = self.sizes[node] - free - shared.used
        return whole_used + (whole + shared.cards(fraction)) * ONE_GPU <= self.sizes[node]

    def cards_taken(self, node: str, gpus: int) -> int:
        """How many untouched cards so many GPUs of a node would take."""
        whole, fraction = divmod(gpus, ONE_GPU)
        if not fraction:
            return whole
        shared = self._shared.get(node, _NONE)
        return whole + shared.cards(fraction) - shared.cards()

    @property
    def untouched(self) -> int:
        """The cards of which nothing is used, on nodes that take new work."""
        return sum(self._untouched_on(node) for node in self.free)

    def _untouched_on(self, node: str) -> int:
        shared = self._shared.get(node)
        if not shared:
            return max(0, self.free[node]) // ONE_GPU
        whole_used = self.sizes[node] - self.free[node] - shared.used
        return max(0, (self.sizes[node] - whole_used) // ONE_GPU - shared.cards())

    @property
    def has_fractions(self) -> bool:
        """Whether any card is used in part."""
        return any(shared.used for shared in self._shared.values())

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


class Shared(NamedTuple):
    """What is used in part of the cards of a node.

    ``loads`` by card, and ``fractions`` of which the card is not known: what is promised, or was recorded
    without. These count as packed on what is left of the others' cards, and then on more, by *first fit
    decreasing* (Johnson 1973).
    """

    loads: dict[int, int]
    fractions: list[int]

    def copy(self) -> Shared:
        return Shared(dict(self.loads), list(self.fractions))

    @property
    def used(self) -> int:
        return sum(self.loads.values()) + sum(self.fractions)

    def use(self, card: int, gpus: int) -> None:
        """So much more of a card is in use, or less."""
        load = self.loads.pop(card, 0) + gpus
        if load:
            self.loads[card] = load

    def cards(self, another: int = 0) -> int:
        """How many cards are used, were another fraction there."""
        fractions = (*self.fractions, another) if another else self.fractions
        return len(_packed(self._fullest_first(), tuple(fractions)).free)

    def card_for(self, fraction: int) -> int | None:
        """The card that another fraction goes on beside these; None if it is none of them."""
        fullest_first = self._fullest_first()
        card = _packed(fullest_first, (*self.fractions, fraction)).on[fraction]
        return fullest_first[card][1] if card < len(fullest_first) else None

    def _fullest_first(self) -> tuple[tuple[int, int], ...]:
        return tuple(sorted((ONE_GPU - load, card) for card, load in self.loads.items()))


_NONE = Shared({}, [])


class _Packed(NamedTuple):
    free: list[int]
    on: dict[int, int]


@lru_cache(maxsize=4096)
def _packed(cards: tuple[tuple[int, int], ...], fractions: tuple[int, ...]) -> _Packed:
    """What is left of each card, and which of them the last fraction of a size lies on.

    It depends on nothing but these, so that the same work always takes the same cards.
    """
    free = [left for left, _ in cards]
    on: dict[int, int] = {}
    for fraction in sorted(fractions, reverse=True):
        card = next((card for card, left in enumerate(free) if fraction <= left), len(free))
        if card == len(free):
            free.append(ONE_GPU)
        free[card] -= fraction
        on[fraction] = card
    return _Packed(free, on)
