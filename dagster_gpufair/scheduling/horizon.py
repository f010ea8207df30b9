"""When GPUs come free: from the end bounds of what runs, and from what may be stopped for the asker."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from dagster_gpufair.scheduling.capacity import Room
from dagster_gpufair.scheduling.holding import Holding, Released, Rights, release
from dagster_gpufair.scheduling.model import Class, Lease, Request, Reservation

if TYPE_CHECKING:
    from dagster_gpufair.scheduling.promises import Kept
    from dagster_gpufair.scheduling.snapshot import Snapshot

Ends = Callable[[Lease], "float | None"]
"""When a lease is over at the latest, if that is known."""


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

    def as_lease(self, started: float, nodes: Mapping[str, int] | None = None) -> Lease:
        """What it would hold."""
        return self.request.lease(self.pool, self.gpus, started, nodes)


class Future:
    """One pool as it will be: leases end one after another on a copy of its room."""

    def __init__(self, snapshot: Snapshot, pool: str) -> None:
        self._snapshot = snapshot
        self.room: Room = snapshot.room(pool).copy()
        self._released: Released = {}
        self._gone_for: dict[str, tuple[int, int]] = {}

    def copy(self) -> Future:
        """The same, to go on from there in another way."""
        other = copy(self)
        other.room = self.room.copy()
        other._released, other._gone_for = dict(self._released), dict(self._gone_for)
        return other

    def end(self, lease: Lease) -> None:
        """The lease has ended."""
        self._release(lease, lease.gpus)
        self.room.end(lease)

    def undo(self, lease: Lease) -> None:
        """It goes on after all."""
        self._release(lease, -lease.gpus)
        where = self._snapshot.room(lease.pool).where(lease)
        self.room.hold(lease, where)

    def block(self, reservation: Reservation) -> None:
        """The placement of a reservation is taken."""
        self.room.block(reservation.nodes)

    def unblock(self, nodes: Mapping[str, int]) -> None:
        """The work that it was reserved for is over."""
        self.room.unblock(nodes)

    def unpromise(self, kept: Kept) -> None:
        """The work that something was promised to is over."""
        self.room.unpromise(kept.request.id, kept.nodes)
        gone = self._gone_for.pop(kept.request.id, (0, 0))
        release(self._released, kept.holding, *kept.adds_without(*gone))

    def released(self, holding: Holding) -> int:
        """What an account, or a team as one, has less than now."""
        return self._released.get(holding, 0)

    def class_of(self, asker: Asker) -> Class | None:
        """The class in which the rules would let the asker start, or None."""
        holding = asker.holding
        less, team_less = self.released(holding), self.released(holding.team)
        class_ = holding.covers(asker.gpus, less, team_less)
        if asker.rights.urgent:
            return Class.URGENT
        if class_ is Class.BORROWING and asker.rights.barred:
            return None
        return class_ if holding.within_limits(asker.gpus, class_, less, team_less) else None

    def left_for(self, asker: Asker) -> int:
        """The GPUs that would be free for it."""
        in_lane = self.room.in_lane(asker.gpus, asker.request.max_duration)
        return self.left(asker.holding, in_lane)

    def left(self, holding: Holding, in_lane: bool) -> int:
        """The GPUs that would be free for an account, in the fast lane or not."""
        held_back = self._snapshot.accounts.held_back_by_others(holding, self._released)
        return self.room.free - held_back - (0 if in_lane else self.room.lane_left)

    def place(self, asker: Asker) -> dict[str, int] | None:
        """The nodes it would get, or None."""
        if asker.gpus > self.left_for(asker):
            return None
        return self.room.place(asker.gpus, asker.request.gpus_per_node)

    def _release(self, lease: Lease, gpus: int) -> None:
        """Its account has so much less; but what it was to leave for a promise is the promise's now."""
        snapshot = self._snapshot
        holding = snapshot.accounts.holding(lease, lease.pool)
        release(self._released, holding, gpus, gpus)
        kept = snapshot.promises.of(lease.notice_for)
        if kept is None or kept.holding.team is not holding.team:
            return
        gone = self._gone_for.get(kept.request.id, (0, 0))
        now_gone = (gone[0] + (gpus if holding is kept.holding else 0), gone[1] + gpus)
        self._gone_for[kept.request.id] = now_gone
        before, after = kept.adds_without(*gone), kept.adds_without(*now_gone)
        release(self._released, kept.holding, before[0] - after[0], before[1] - after[1])


Change = Callable[[Future], None]


class Opening(NamedTuple):
    """A time at which the asker fits, where, and the pool as it is then."""

    at: float
    nodes: dict[str, int]
    future: Future


def earliest(
    snapshot: Snapshot,
    asker: Asker,
    leases: Iterable[Lease],
    ends: Ends,
    blocks: tuple[Reservation, ...] = (),
    until: float = math.inf,
) -> Opening | None:
    """The earliest time up to ``until`` at which the asker fits and the rules let it start.

    Of the pool's leases these end, nobody else comes, and ``blocks`` are taken until their owners' work is
    over.
    """
    to_come = _changes(snapshot, asker.pool, leases, ends, blocks, until)
    if not to_come:
        return None
    future = Future(snapshot, asker.pool)
    for reservation in blocks:
        future.block(reservation)
    for at, changes in to_come:
        for change in changes:
            change(future)
        may_begin = asker.gpus <= snapshot.most_before_windows(asker, at)
        if may_begin and future.class_of(asker) is not None:
            nodes = future.place(asker)
            if nodes is not None:
                return Opening(at, nodes, future)
    return None


def _changes(
    snapshot: Snapshot,
    pool: str,
    leases: Iterable[Lease],
    ends: Ends,
    blocks: tuple[Reservation, ...],
    until: float,
) -> list[tuple[float, list[Change]]]:
    """What ends up to ``until``, by time."""
    at: dict[float, list[Change]] = {}
    for lease in leases:
        end = ends(lease)
        if end is not None and end <= until:
            at.setdefault(max(end, snapshot.now), []).append(partial(Future.end, lease=lease))
    for kept in snapshot.promises.in_pool(pool):
        if kept.ends is not None and kept.ends <= until:
            at.setdefault(kept.ends, []).append(partial(Future.unpromise, kept=kept))
    for block in blocks:
        length = block.request.max_duration
        if block.at is not None and length is not None and block.at + length <= until:
            at.setdefault(block.at + length, []).append(partial(Future.unblock, nodes=block.nodes))
    for window in snapshot.windows_ahead(pool):
        # What a window keeps from starting may start once it is over.
        if window.until <= until:
            at.setdefault(window.until, [])
    return sorted(at.items())
