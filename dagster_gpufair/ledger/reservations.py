"""What a pass keeps for whom: recorded when it changes, and not at every pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy.orm import Session

from dagster_gpufair.ledger import events, requests, status
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
    known = {(row["request"], row["pool"], row["of_quota"]): row for row in before}
    rows, new = [], []
    for reservation in decided:
        row = _row(reservation)
        old = known.get((row["request"], row["pool"], row["of_quota"]))
        if old is not None and _alike(old, row, now):
            rows.append(old)
        else:
            rows.append(row)
            new.append(row)
    return sorted(rows, key=lambda row: (row["pool"], row["request"], row["of_quota"])), new


def record(session: Session, rows: Sequence[Row], new: Sequence[Row], at: float) -> None:
    """Note what holds from now on, with an event for each of ``new``."""
    known = requests.by_ids(session, [row["request"] for row in new])
    for row in new:
        request = known.get(row["request"])
        events.append(
            session,
            "reserved",
            at,
            run_id=request.run_id if request else None,
            team=row["team"],
            pool=row["pool"],
            data={key: value for key, value in row.items() if key not in ("team", "pool")},
        )
    status.put(session, STATUS, list(rows), at)


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
