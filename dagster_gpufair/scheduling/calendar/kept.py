"""A promise as it is kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from dagster_gpufair.scheduling.accounts.holding import Holding
from dagster_gpufair.scheduling.model import Lease, Request
from dagster_gpufair.scheduling.space.room import Room


class Kept(NamedTuple):
    """Where a promise is, and until when at most the work that it was made for lasts.

    ``leaving`` is what of its account's own work, and of its team's, was given notice for it. Where nobody
    has to leave first, ``lease`` is what is held for it until it starts in this pass.
    """

    request: Request
    holding: Holding
    gpus: int
    nodes: Mapping[str, int]
    ends: float | None
    leaving: tuple[int, int] = (0, 0)
    lease: Lease | None = None

    @property
    def adds(self) -> tuple[int, int]:
        """What it adds to the use of its account, and of its team, beside what leaves for it."""
        return self.adds_without(0, 0)

    def adds_without(self, own: int, of_team: int) -> tuple[int, int]:
        """The same once so much of what leaves for it has left."""
        return (
            max(0, self.gpus - self.leaving[0] + own),
            max(0, self.gpus - self.leaving[1] + of_team),
        )

    def put_in(self, room: Room) -> None:
        """Keep it in a room."""
        if self.lease is None:
            room.promise(self.request.id, self.nodes, self.request.max_duration)
        else:
            room.hold(self.lease, self.nodes)

    def take_out_of(self, room: Room) -> None:
        """Keep it there no more."""
        if self.lease is None:
            room.unpromise(self.request.id, self.nodes)
        else:
            room.end(self.lease)
