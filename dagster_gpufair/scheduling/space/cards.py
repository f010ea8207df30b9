"""Which cards of its nodes a lease gets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dagster_gpufair.policy.quantities import ONE_GPU
from dagster_gpufair.scheduling.model import Cards, Lease
from dagster_gpufair.scheduling.space.nodes import Nodes


class FreeCards:
    """The cards of one pool that no lease has, by node. What starts takes those with the lowest numbers.

    Where a lease does not say which cards it has, they are not known here: only what fits counts then.
    """

    def __init__(self, leases: Iterable[Lease]) -> None:
        self._taken: dict[str, set[int]] = {}
        self._lowest: dict[str, int] = {}
        for lease in leases:
            for node, cards in lease.cards.items():
                self._taken.setdefault(node, set()).update(card for card, _ in cards)

    def take(self, nodes: Nodes, placement: Mapping[str, int]) -> Cards:
        """The cards of a placement that fits: a fraction shares a card if one has room."""
        return {node: self._take(nodes, node, gpus) for node, gpus in placement.items() if gpus}

    def _take(self, nodes: Nodes, node: str, gpus: int) -> tuple[tuple[int, int], ...]:
        whole, fraction = divmod(gpus, ONE_GPU)
        cards = [(self._untouched(node), ONE_GPU) for _ in range(whole)]
        if fraction:
            shared = nodes.shared_card(node, fraction)
            cards.append((self._untouched(node) if shared is None else shared, fraction))
        return tuple(cards)

    def _untouched(self, node: str) -> int:
        taken = self._taken.setdefault(node, set())
        card = self._lowest.get(node, 0)
        while card in taken:
            card += 1
        taken.add(card)
        self._lowest[node] = card + 1
        return card
