"""What holds GPUs, as the engine sees it: runs of Dagster, or steps of one.

The engine knows no Dagster. It asks what is to be seen of the holders of its leases, and has them
launched, stopped and told; whoever implements `Holders` does so for one kind of holder.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from sqlalchemy.orm import Session

from dagster_gpufair.ledger.leases import LeaseRecord
from dagster_gpufair.ledger.requests import RequestRecord

Doing = Literal["queued", "starting", "running", "over"]


@dataclass(frozen=True, slots=True)
class Sight:
    """What is to be seen of a holder now.

    ``since`` is when it began to run, or when it was over, in seconds since the epoch. ``how`` says how
    it ended. ``alive`` is whether its processes are there: None where nobody can tell. ``goes_on`` is
    whether it was over because it was stopped for another, so that its work is to go on later.
    """

    doing: Doing
    since: float | None = None
    how: str = ""
    alive: bool | None = None
    goes_on: bool = False


class Heard(NamedTuple):
    """What a holder says of itself: up to when its work is saved, and that it may be stopped at once."""

    saved_at: float | None = None
    may_stop: bool = False


class CannotGoOn(Exception):
    """What was stopped can never go on, and why."""


LaunchKind = Literal["launched", "failed", "unreachable", "unsettled", "not_queued", "broken_off"]


@dataclass(frozen=True, slots=True)
class Launch:
    """What came of a launch.

    ``launched``: the launcher has taken it. ``failed``: the launcher said no. ``unreachable``: what it needs
    could not be reached, so it has certainly not begun. ``unsettled``: the call broke off or timed out, and
    the launch may still happen. ``not_queued``: the holder does not wait to be launched (any more), or
    somebody else launches it. ``broken_off``: something broke before it was handed to its launcher.
    """

    lease: LeaseRecord
    kind: LaunchKind
    detail: str = ""
    location: str = ""


class Holders(Protocol):
    """What holds GPUs, of one kind."""

    def look(self, held: Collection[LeaseRecord]) -> Mapping[str, Sight]:
        """What is to be seen of the holders of these leases, by request id.

        One that is missing in the answer could not be looked at: it keeps its GPUs.
        """
        ...

    def how_ended(self, waited: Collection[RequestRecord]) -> Mapping[str, str]:
        """How those ended that are over, by request id; one that is not over is left out."""
        ...

    def requeue(self, lease: LeaseRecord) -> bool:
        """Have a holder wait again whose launch has certainly not happened.

        Returns:
            Whether it waits now: one that has moved on stays as it is.
        """
        ...

    def give_up(self, lease: LeaseRecord, why: str, *, if_not_begun: bool = False) -> None:
        """Have a holder over by its own record: nothing of it is there, and nothing may come any more.

        Args:
            if_not_begun: leave it alone if it has begun after all, since it was looked at.
        """
        ...

    def stop(self, lease: LeaseRecord) -> None:
        """Ask a holder to end. May hang, and may do nothing: nothing is free because of it."""
        ...

    def heard(self, held: Collection[LeaseRecord]) -> Mapping[str, Heard]:
        """What holders say of themselves, by request id, as far as it was heard."""
        ...

    def go_on(
        self, request: RequestRecord, write: Callable[[], AbstractContextManager[Session]]
    ) -> None:
        """Have what was stopped wait to be launched again (`lifecycle.to_go_on`, `lifecycle.goes_on`).

        May hang, and may break off anywhere: it is called again then, and does what is left to do.

        Args:
            write: a transaction of this writer's.

        Raises:
            CannotGoOn: if it never can.
        """
        ...

    def let_lie(self, request: RequestRecord) -> None:
        """What was stopped does not go on: it is over as it would be had anybody stopped it."""
        ...
