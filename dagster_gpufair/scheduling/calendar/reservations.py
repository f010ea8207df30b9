"""Reservations: what waits for space keeps it from worse requests, which may start before it otherwise.

In each pool at most one urgent or guaranteed request holds one, and one that borrows and has waited
``reserve_after``. Placement and start are fixed when it is made.
"""

from __future__ import annotations

from collections import Counter

from dagster_gpufair.scheduling.accounts.asker import Asker
from dagster_gpufair.scheduling.calendar.beginnings import Beginning, Rank, owner_of
from dagster_gpufair.scheduling.calendar.promises import Promises
from dagster_gpufair.scheduling.calendar.then import Then
from dagster_gpufair.scheduling.model import Class, Reservation
from dagster_gpufair.scheduling.present import Present

STRONG, WEAK = "strong", "weak"
"""The two reservations a pool may have: of what is urgent or guaranteed, and of what borrows."""


class Reservations:
    """Those of one pass, as they are made."""

    def __init__(self, present: Present, promises: Promises) -> None:
        self._present, self._promises = present, promises
        self._reserved: dict[str, dict[str, Beginning]] = {}
        self._made: Counter[str] = Counter()
        self._versions: dict[Beginning, int] = {}

    def __bool__(self) -> bool:
        return any(self._reserved.values())

    def all(self) -> list[Reservation]:
        """All of them, by pool."""
        return [
            each.reservation
            for pool in sorted(self._reserved)
            for each in self._reserved[pool].values()
        ]

    def clear(self) -> None:
        """Forget all reservations."""
        self._reserved.clear()
        self._made.update(self._made.keys())

    def version(self, pool: str) -> int:
        """A number that changes whenever one is made in the pool, or all are forgotten."""
        return self._made[pool]

    def is_open(self, pool: str, class_: Class) -> bool:
        """Whether a request of this class could reserve in the pool."""
        return _strength(class_) not in self._reserved.get(pool, ())

    def has_place(self, pool: str) -> bool:
        """Whether any request could reserve in the pool."""
        return len(self._reserved.get(pool, ())) < len((STRONG, WEAK))

    def others(self, asker: Asker) -> tuple[Beginning, ...]:
        """The reservations of others in its pool."""
        return tuple(
            each
            for each in self.in_pool(asker.pool)
            if each.owner is not None and each.owner.request is not asker.request
        )

    def enter(
        self, asker: Asker, at: float | None, nodes: dict[str, int], then: Then, rank: Rank
    ) -> Reservation:
        """Reserve for it from then on, on these nodes.

        Args:
            then: the pool at that time, with the owner in its place; without a time, the pool now.
        """
        beginning = Beginning(at, then, asker, nodes, rank)
        if at is None:
            beginning.then = self.keeping(beginning, then)
        self._reserved.setdefault(asker.pool, {})[_strength(asker.class_)] = beginning
        self._versions[beginning] = self._present.running.version(asker.pool)
        self._made[asker.pool] += 1
        return beginning.reservation

    def keeping(self, beginning: Beginning, then: Then) -> Then:
        """A pool in which what is free of a placement is kept for its owner, who has no known start."""
        owner, kept = owner_of(beginning), then.copy()
        # What the fast lane keeps from the owner stays free.
        left = then.room.free - (0 if then.in_lane(owner) else then.room.lane_left)
        nodes = {}
        for node, part in sorted((beginning.nodes or {}).items()):
            nodes[node] = max(0, min(part, then.room.nodes.free.get(node, 0), left))
            left -= nodes[node]
        kept.block(owner, nodes)
        return kept

    def in_pool(self, pool: str) -> list[Beginning]:
        """Those of a pool."""
        held = self._reserved.get(pool)
        if not held:
            return []
        for each in held.values():
            # Without a known start it is what is free now that is kept.
            version = self._present.running.version(pool)
            if each.keeps_what_is_free and self._versions[each] != version:
                each.then = self.keeping(each, Then(self._present, self._promises, pool))
                each.changed()
                self._versions[each] = version
        return list(held.values())


def _strength(class_: Class) -> str:
    return WEAK if class_ is Class.BORROWING else STRONG
