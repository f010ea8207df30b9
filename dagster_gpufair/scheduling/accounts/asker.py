"""A request as it asks: for so many GPUs of one pool, in a class."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from dagster_gpufair.scheduling.accounts.holding import Holding, Rights
from dagster_gpufair.scheduling.model import Cards, Class, Lease, Request


class Asker(NamedTuple):
    """A request that asks for so many GPUs of one pool, and the class in which it does."""

    request: Request
    holding: Holding
    gpus: int
    class_: Class
    rights: Rights

    @property
    def pool(self) -> str:
        return self.holding.pool

    def as_lease(
        self, started: float, nodes: Mapping[str, int] | None = None, cards: Cards | None = None
    ) -> Lease:
        """What it would hold."""
        return self.request.lease(self.pool, self.gpus, started, nodes, cards)
