"""What a pass keeps for whom: recorded when it changes, and not at every pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy.orm import Session

from dagster_gpufair.ledger import events, requests, status
from dagster_gpufair.ledger.events import EventKind
from dagster_gpufair.ledger.leases import recorded
from dagster_gpufair.scheduling.model import Reservation

STATUS = "reservations"
SAME_START = 60.0
"""Seconds by which the start of a reservation may move and count as the same."""

Row = dict[str, Any]
"""A reservation as data: request, team, pool, gpus, nodes, at, class and of_quota."""


def current(session: Session) -> Sequence[Row]:
    """Those that were recorded last."""
    return status.get(session, STATUS) or []


def compared(
    before: Sequence[Row], decided: Sequence[Reservation], now: float
) -> tuple[Sequence[Row], Sequence[Row]]:
    """(all that hold now, those of them that are new or other than before)."""
    known = {_key(row): row for row in before}
    rows, new = [], []
    for reservation in decided:
        row = _row(reservation)
        old = known.get(_key(row))
        if old is not None and _alike(old, row, now):
            rows.append(old)
        else:
            rows.append(row)
            new.append(row)
    return sorted(rows, key=lambda row: (row["pool"], row["request"], row["of_quota"])), new


def record(session: Session, rows: Sequence[Row], new: Sequence[Row], at: float) -> None:
    """Note what holds from now on, with an event for each of ``new`` and for each that holds no more.

    So each has an end, also where the request starts or is gone; one that only changes goes on.
    """
    holding = {_key(row) for row in rows}
    lost = [row for row in current(session) if _key(row) not in holding]
    known = requests.by_ids(session, [row["request"] for row in (*new, *lost)])

    def append(kind: EventKind, row: Row, data: Row) -> None:
        request = known.get(row["request"])
        run_id = request.run_id if request else None
        events.append(
            session, kind, at, run_id=run_id, team=row["team"], pool=row["pool"], data=data
        )

    for row in lost:
        append("unreserved", row, _end(row, new))
    for row in new:
        append("reserved", row, {key: row[key] for key in row if key not in ("team", "pool")})
    status.put(session, STATUS, list(rows), at)


def _end(lost: Row, new: Sequence[Row]) -> Row:
    """Of one that holds no more: what it was, and for whom its pool keeps GPUs instead since then."""
    instead = [
        row["request"]
        for row in new
        if row["pool"] == lost["pool"]
        and row["of_quota"] == lost["of_quota"]
        and row["request"] != lost["request"]
    ]
    return {"request": lost["request"], "of_quota": lost["of_quota"], "instead": instead}


def _key(row: Row) -> tuple[str, str, bool]:
    return row["request"], row["pool"], row["of_quota"]


def _row(reservation: Reservation) -> Row:
    return {
        "request": reservation.request.id,
        "team": reservation.request.team,
        "pool": reservation.pool,
        "gpus": reservation.gpus,
        "nodes": dict(reservation.nodes),
        "at": reservation.at,
        "class": recorded(reservation.class_),
        "of_quota": reservation.of_quota,
    }


def _alike(one: Row, other: Row, now: float) -> bool:
    if {**one, "at": None} != {**other, "at": None}:
        return False
    if one["at"] is None or other["at"] is None:
        return one["at"] is other["at"]
    # What is late starts now, at every pass.
    return max(one["at"], other["at"]) <= now or abs(one["at"] - other["at"]) < SAME_START
