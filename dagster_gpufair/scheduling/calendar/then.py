"""One pool as it will be at a moment to come.

Its accounts are those of now, but for what is released by then: what starts in the pass counts in them by
itself, and only what is over by then has to be told.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Protocol

from dagster_gpufair.scheduling.accounts.asker import Asker
from dagster_gpufair.scheduling.accounts.balance import Balance
from dagster_gpufair.scheduling.accounts.entitlements import Key
from dagster_gpufair.scheduling.accounts.holding import Holding
from dagster_gpufair.scheduling.calendar.kept import Kept
from dagster_gpufair.scheduling.model import Cards, Class, Lease, Request
from dagster_gpufair.scheduling.present import Present
from dagster_gpufair.scheduling.space.nodes import MayTake
from dagster_gpufair.scheduling.space.room import Room


class Promised(Protocol):
    """What is promised now."""

    def of(self, id: str | None) -> Kept | None:
        """To a request, by its id."""

    def in_pool(self, pool: str) -> Sequence[Kept]:
        """In a pool."""


class Then:
    """The free GPUs of a pool and the accounts in it, as one thing after another happens."""

    def __init__(self, present: Present, promised: Promised, pool: str) -> None:
        self._present, self._promised = present, promised
        self.room: Room = present.room(pool).copy()
        self.balance = Balance(present.accounts, pool)
        self._gone_for: dict[str, tuple[int, int]] = {}
        self._kept = frozenset(kept.request.id for kept in promised.in_pool(pool))
        self._over: dict[str, tuple[int, int]] = {}

    def copy(self) -> Then:
        """The same, to go on from there in another way."""
        other = copy(self)
        other.room, other.balance = self.room.copy(), self.balance.copy()
        other._gone_for, other._over = dict(self._gone_for), dict(self._over)
        return other

    # What happens

    def end(self, lease: Lease) -> None:
        """A lease has ended."""
        self._release(lease, lease.gpus)
        self.room.end(lease)

    def go_on(self, lease: Lease) -> None:
        """One that had ended goes on after all."""
        self._release(lease, -lease.gpus)
        self.room.hold(lease, self._present.room(lease.pool).where(lease))

    def stay(self, lease: Lease) -> None:
        """One that was to leave is there after all."""
        after = staying(lease)
        if self.room.has(lease):
            self.room.notify(lease, after)
        elif after.ends is None:
            self.go_on(lease)
            self.room.notify(lease, after)

    def begin(self, asker: Asker, begins: float, nodes: Mapping[str, int], cards: Cards) -> None:
        """A request starts now on these nodes and cards, and is still there then."""
        self.room.hold(asker.as_lease(begins, self.room.said(nodes), cards), nodes)

    def pass_by(self, asker: Asker) -> None:
        """A request starts now, and is over then."""
        self.balance.release(asker.holding, asker.gpus, asker.gpus)

    def block(self, asker: Asker, nodes: Mapping[str, int]) -> None:
        """What is reserved for a request is taken, whoever uses it now."""
        self.balance.release(asker.holding, -asker.gpus, -asker.gpus)
        self.room.block(nodes)

    def unblock(self, asker: Asker, nodes: Mapping[str, int]) -> None:
        """The work that it was reserved for is over."""
        self.balance.release(asker.holding, asker.gpus, asker.gpus)
        self.room.unblock(nodes)

    def keep(self, kept: Kept, victims: Iterable[tuple[Lease, Lease]] = ()) -> None:
        """Something is promised now, and kept then.

        Args:
            victims: those who were given notice for it and are there then, before and after that.
        """
        for before, after in victims:
            self.room.notify(before, after)
        self._kept |= {kept.request.id}
        kept.put_in(self.room)

    def fulfil(self, kept: Kept) -> None:
        """The work that something is promised to is over then."""
        if kept.request.id in self._over:
            return
        if kept.request.id in self._kept:
            self._kept -= {kept.request.id}
            kept.take_out_of(self.room)
        gone = self._gone_for.pop(kept.request.id, (0, 0))
        released = kept.adds_without(*gone)
        self._over[kept.request.id] = released
        self.balance.release(kept.holding, *released)

    def withdraw(self, kept: Kept) -> None:
        """It is promised no more now, and does not count in its account any longer."""
        released = self._over.pop(kept.request.id, None)
        if released is not None:
            self.balance.release(kept.holding, -released[0], -released[1])
            return
        if kept.request.id in self._kept:
            self._kept -= {kept.request.id}
            kept.take_out_of(self.room)
        gone = self._gone_for.pop(kept.request.id, (0, 0))
        before, after = kept.adds, kept.adds_without(*gone)
        self.balance.release(kept.holding, after[0] - before[0], after[1] - before[1])

    def come_into_force(self, key: Key) -> None:
        """These grants and windows are in force from here on."""
        self.balance.come_into_force(key)

    def has(self, lease: Lease) -> bool:
        """Whether a lease has not ended by then."""
        return self.room.has(lease)

    # What is left

    def class_of(self, asker: Asker) -> Class | None:
        """The class in which the rules would let the asker start, or None."""
        holding, rights = asker.holding, asker.rights
        less, team_less = self.balance.less(holding), self.balance.less(holding.team)
        if rights.urgent:
            return Class.URGENT
        class_ = holding.covers(asker.gpus, less, team_less)
        return class_ if holding.allows(asker.gpus, class_, rights, less, team_less) else None

    def left(self, holding: Holding, in_lane: bool) -> int:
        """The GPUs that would be free for an account, in the fast lane or not."""
        return self.room.free - self.balance.by_others(holding) - self._lane(in_lane)

    def left_for(self, asker: Asker) -> int:
        """The GPUs that would be free for it."""
        return self.left(asker.holding, self.in_lane(asker))

    def in_lane(self, asker: Asker) -> bool:
        """Whether the fast lane is for it."""
        return self.in_lane_as(asker.gpus, asker.request)

    def in_lane_as(self, gpus: int, request: Request) -> bool:
        """Whether the fast lane is for so many GPUs of a request."""
        return self.room.in_lane(gpus, request.max_duration)

    def spared_by(self, asker: Asker, holding: Holding, gpus: int, request: Request) -> int:
        """How much of what an asker takes could never be another's: its own held-back, or in its lane."""
        relief = self.balance.relief(asker.holding, asker.gpus, holding)
        if self.in_lane(asker) and not self.in_lane_as(gpus, request):
            relief += min(self.room.lane_left, asker.gpus)
        return relief

    def place(self, asker: Asker, may_take: MayTake | None = None) -> dict[str, int] | None:
        """The nodes it would get, or None."""
        if asker.gpus > self.left_for(asker):
            return None
        held_back = self.balance.by_others(asker.holding)
        return self.room.place(asker.gpus, asker.request.gpus_per_node, may_take, held_back)

    def _lane(self, in_lane: bool) -> int:
        return 0 if in_lane else self.room.lane_left

    def _release(self, lease: Lease, gpus: int) -> None:
        """Its account has so much less; but what it was to leave for a promise is the promise's now."""
        holding = self._present.accounts.holding(lease, lease.pool)
        self.balance.release(holding, gpus, gpus)
        kept = self._promised.of(lease.notice_for)
        if kept is None or kept.holding.team is not holding.team:
            return
        gone = self._gone_for.get(kept.request.id, (0, 0))
        now_gone = (gone[0] + (gpus if holding is kept.holding else 0), gone[1] + gpus)
        self._gone_for[kept.request.id] = now_gone
        before, after = kept.adds_without(*gone), kept.adds_without(*now_gone)
        self.balance.release(kept.holding, before[0] - after[0], before[1] - after[1])


def staying(lease: Lease) -> Lease:
    """A lease that was given notice, and need not leave after all."""
    return replace(lease, notice_until=None, notice_for=None)
