"""What happened, in the order it was committed: added to, never changed.

Each is written in the transaction of what it tells of, and holds what a replay needs (`replay`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

from sqlalchemy import Select, func, insert, select
from sqlalchemy.orm import Session

from dagster_gpufair.ledger.tables import EventRow

EventKind = Literal[
    # the rules
    "policy",
    "cordoned",
    "uncordoned",
    # requests
    "submitted",
    "waits",
    "refused",
    "cancelled",
    # leases
    "granted",
    "ungated",
    "claimed",
    "launched",
    "started",
    "notice",
    "spared",
    "renewed",
    "stopping",
    "lingering",
    "recalled",
    "preempted",
    "continued",
    "kept",
    "saved",
    "released",
    # what a pass decides besides
    "pass",
    "reserved",
    "unreserved",
    "promised",
    "withdrawn",
    "proposed",
    "decided",
    # what a person has switched off for a time, and on again
    "paused",
    "resumed",
    # the daemon's clock was set
    "clock",
]


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened. ``at`` in seconds since the epoch."""

    id: int
    at: float
    kind: str
    run_id: str | None
    team: str | None
    pool: str | None
    data: Mapping[str, Any]


_COLUMNS = tuple(getattr(EventRow, field.name) for field in fields(Event))


def append(
    session: Session,
    kind: EventKind,
    at: float,
    *,
    run_id: str | None = None,
    team: str | None = None,
    pool: str | None = None,
    data: Mapping[str, Any] | None = None,
) -> None:
    """Record an event; ``data`` may hold strings of any content and length."""
    session.execute(
        insert(EventRow).values(
            at=at, kind=kind, run_id=run_id, team=team, pool=pool, data=dict(data or {})
        )
    )


def of_run(session: Session, run_id: str) -> Sequence[Event]:
    """What happened to a run, oldest first."""
    return _read(session, select(*_COLUMNS).where(EventRow.run_id == run_id))


def since(session: Session, after: int, limit: int | None = None) -> Sequence[Event]:
    """The events with an id above ``after``, oldest first.

    Nothing is ever committed below an id that was once visible, so the last id is a safe cursor.
    """
    return _read(session, select(*_COLUMNS).where(EventRow.id > after).limit(limit))


def of_kinds(
    session: Session, kinds: Collection[str], pools: Collection[str] | None = None
) -> Sequence[Event]:
    """The events of these kinds, oldest first; only those of some pools if they are given."""
    query = select(*_COLUMNS).where(EventRow.kind.in_(kinds))
    return _read(session, query if pools is None else query.where(EventRow.pool.in_(pools)))


def newest(session: Session) -> int:
    """The id of the last event; 0 before the first."""
    return session.scalar(select(func.max(EventRow.id))) or 0


def _read(session: Session, query: Select[Any]) -> Sequence[Event]:
    return [Event(*row) for row in session.execute(query.order_by(EventRow.id))]
