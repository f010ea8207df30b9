"""How many GPUs are free in a pool, and on each of its nodes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Set
from contextlib import contextmanager
from copy import copy

from dagster_gpufair.policy.models import FastLane, Pool
from dagster_gpufair.policy.quantities import ONE_GPU
from dagster_gpufair.scheduling.model import UNNAMED, Lease, Promise
from dagster_gpufair.scheduling.space.keeping import Keeping
from dagster_gpufair.scheduling.space.lane import Lane
from dagster_gpufair.scheduling.space.nodes import MayTake, Nodes


class Room:
    """The free GPUs of one pool: what its ready nodes have, less what is used and promised there.

    ``idle`` is what no lease uses, ``free`` what nothing is promised of besides. Cordoned nodes
    accept no new runs and count for nothing here. Use above what a pool has (it shrank) leaves less than
    nothing free. What is under notice, or ends by ``soon``, is ``leaving``: promises count on it.
    """

    def __init__(
        self,
        pool: Pool,
        leases: Iterable[Lease],
        cordoned: frozenset[str] = frozenset(),
        lane: FastLane | None = None,
        soon: float = -math.inf,
    ) -> None:
        self.named = pool.nodes is not None
        sizes = pool.nodes if pool.nodes is not None else {UNNAMED: pool.capacity}
        ready = {node: size for node, size in sizes.items() if node not in cordoned}
        self.nodes = Nodes(sizes, ready)
        self._lane = Lane(lane)
        self._soon = soon
        self.ready = self.idle = self.free = sum(ready.values())
        self._keeping = Keeping()
        self._where: dict[str, Mapping[str, int]] = {}
        self.leaving: dict[str, Lease] = {}
        self._without_promises: Nodes | None = None
        unplaced = []
        for lease in leases:
            if self.named and not lease.nodes:
                unplaced.append(lease)
            else:
                self.hold(lease, lease.nodes if self.named else {UNNAMED: lease.gpus})
        for lease in sorted(unplaced, key=lambda lease: (lease.started, lease.id)):
            self.hold(lease, self.nodes.likely(lease.gpus))

    def copy(self) -> Room:
        """The same, to try something on."""
        other = copy(self)
        other.nodes = self.nodes.copy()
        other._keeping = self._keeping.copy()
        other._lane = self._lane.copy()
        other._where = dict(self._where)
        other.leaving = dict(self.leaving)
        other._without_promises = None
        return other

    def has(self, lease: Lease) -> bool:
        """Whether a lease is there."""
        return lease.id in self._where

    def where(self, lease: Lease) -> Mapping[str, int]:
        """The GPUs of a lease on the ready nodes."""
        return self._where.get(lease.id, {})

    def place(
        self,
        gpus: int,
        per_node: int | None,
        may_take: MayTake | None = None,
        held_back: int = 0,
    ) -> dict[str, int] | None:
        """The nodes such a request would get, or None if it does not fit.

        ``held_back`` has to stay free, its whole GPUs on whole cards.
        """
        if gpus > self.free - held_back:
            return None
        return self._place_on(self.nodes, gpus, per_node, may_take, held_back)

    def _place_on(
        self,
        nodes: Nodes,
        gpus: int,
        per_node: int | None,
        may_take: MayTake | None,
        held_back: int,
    ) -> dict[str, int] | None:
        per_node = per_node if self.named else None
        whole_cards = held_back // ONE_GPU
        if not whole_cards or not (gpus % ONE_GPU or nodes.has_fractions):
            return nodes.place(gpus, per_node, may_take)
        spare = nodes.untouched - whole_cards
        if gpus // ONE_GPU > spare:
            return None
        return nodes.place(
            gpus,
            per_node,
            lambda node, part: (
                nodes.cards_taken(node, part) <= spare
                and (may_take is None or may_take(node, part))
            ),
        )

    def said(self, nodes: Mapping[str, int]) -> Mapping[str, int]:
        """Nodes as they are told: none in a pool without nodes."""
        return nodes if self.named else {}

    def hold(self, lease: Lease, nodes: Mapping[str, int]) -> None:
        """A lease uses GPUs on these nodes."""
        self._without_promises = None
        here = {node: part for node, part in nodes.items() if node in self.nodes.free and part}
        self._where[lease.id] = here
        self.nodes.take(here, lease.cards)
        gpus = sum(here.values())
        self.idle -= gpus
        self.free -= gpus
        self._lane.hold(lease)
        if self.is_leaving(lease):
            self._leave(lease, 1)

    def end(self, lease: Lease) -> None:
        """The lease ends, and frees what it used."""
        self._without_promises = None
        if self.is_leaving(lease):
            self._leave(lease, -1)
        here = self._where.pop(lease.id, {})
        self.nodes.give(here, lease.cards)
        gpus = sum(here.values())
        self.idle += gpus
        self.free += gpus
        self._lane.end(lease)

    def is_leaving(self, lease: Lease) -> bool:
        """Whether promises count on its end."""
        if lease.overdue:
            return False
        ends = lease.ends
        return lease.notice_until is not None or (ends is not None and ends <= self._soon)

    def could_spare(self, lease: Lease, staying: Lease) -> bool:
        """Whether all that is promised could still be kept if the lease stayed after all."""
        keeping = self._keeping
        return self.is_leaving(staying) or all(
            keeping.promised(node) <= self._idle_on(node) + keeping.leaving(node) - part
            for node, part in self.where(lease).items()
        )

    def notify(self, before: Lease, after: Lease) -> None:
        """The lease was given notice, or is under notice no more."""
        if self.is_leaving(before):
            self._leave(before, -1)
        if self.is_leaving(after):
            self._leave(after, 1)

    def promise(self, owner: str, nodes: Mapping[str, int], max_duration: float | None) -> None:
        """Keep these GPUs for a request of this length."""
        self._lane.promise(owner, sum(nodes.values()), max_duration)
        for node, part in nodes.items():
            with self._keeping_anew(node):
                self._keeping.promise(node, owner, part)

    def unpromise(self, owner: str, nodes: Mapping[str, int]) -> None:
        """Keep them for it no more."""
        self._lane.unpromise(owner)
        for node, part in nodes.items():
            with self._keeping_anew(node):
                self._keeping.promise(node, owner, -part)

    def block(self, nodes: Mapping[str, int]) -> None:
        """Take these GPUs, whoever uses them now."""
        self.nodes.take(nodes)
        self.free -= sum(nodes.values())

    def unblock(self, nodes: Mapping[str, int]) -> None:
        """Free them again."""
        self.nodes.give(nodes)
        self.free += sum(nodes.values())

    def promised_nodes(self, promise: Promise) -> dict[str, int]:
        """Where a promise is."""
        return dict(promise.nodes) if self.named else {UNNAMED: promise.gpus}

    def could_keep(self, nodes: Mapping[str, int]) -> bool:
        """Whether these GPUs will be there once all that is under notice has left, beside other promises."""
        keeping = self._keeping
        return all(
            node in self.nodes.free
            and keeping.promised(node) + part <= self._idle_on(node) + keeping.leaving(node)
            for node, part in nodes.items()
        )

    def free_but_for(self, owner: str, nodes: Mapping[str, int]) -> int:
        """What would be free were these GPUs not promised to a request."""
        keeping = self._keeping
        return self.free + sum(keeping.kept(node) - keeping.kept(node, owner) for node in nodes)

    def has_idle(self, nodes: Mapping[str, int]) -> bool:
        """Whether no lease uses these GPUs any more."""
        return all(self._idle_on(node) >= part for node, part in nodes.items())

    def could_place(self, gpus: int, per_node: int | None, held_back: int = 0) -> bool:
        """Whether what no lease uses, promised or not, has the shape, beside what is held back."""
        if self._without_promises is None:
            keeping = self._keeping
            kept = {node: part for node in keeping.nodes() if (part := keeping.kept(node))}
            self._without_promises = self.nodes.copy() if kept else self.nodes
            self._without_promises.give(kept)
        return self._place_on(self._without_promises, gpus, per_node, None, held_back) is not None

    def in_lane(self, gpus: int, max_duration: float | None) -> bool:
        """Whether the fast lane is for requests of this size and length."""
        return self._lane.is_for(gpus, max_duration)

    @property
    def lane(self) -> FastLane | None:
        """The rule of its fast lane."""
        return self._lane.rule

    @property
    def lane_left(self) -> int:
        """What is free in the fast lane."""
        return self._lane.left

    def surely_fits(self, kept_nodes: Set[str]) -> int:
        """A size that fits on one node that is not kept, like any smaller one that is whole."""
        for free, node in reversed(self.nodes.by_free):
            if node in kept_nodes:
                continue
            whole = free // ONE_GPU * ONE_GPU
            while whole > 0 and not self.nodes.fits(node, whole):
                whole -= ONE_GPU
            return max(0, whole)
        return 0

    def _idle_on(self, node: str) -> int:
        """What no lease uses of a node."""
        return self.nodes.free[node] + self._keeping.kept(node)

    def _leave(self, lease: Lease, sign: int) -> None:
        self._lane.leave(lease, sign)
        if sign > 0:
            self.leaving[lease.id] = lease
        else:
            self.leaving.pop(lease.id, None)
        for node, part in self.where(lease).items():
            with self._keeping_anew(node):
                self._keeping.leave(node, lease.notice_for, sign * part)

    @contextmanager
    def _keeping_anew(self, node: str) -> Iterator[None]:
        """What is kept of the free GPUs of a node changes with what is promised or leaving there."""
        self._without_promises = None
        before = self._keeping.kept(node)
        yield
        self._keep_instead(node, before, self._keeping.kept(node))

    def _keep_instead(self, node: str, before: int, after: int) -> None:
        """So much of the free GPUs of a node is kept from now on."""
        if before != after:
            if before:
                self.nodes.give({node: before})
            if after:
                self.nodes.take({node: after})
            self.free += before - after
