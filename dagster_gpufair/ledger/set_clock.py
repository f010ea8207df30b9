"""When the time of day is set, what is still counted from is moved with it.

So a run keeps the time that it has run, a request the time that it has waited, and what was borrowed fades
as before. What is over keeps the times that it had.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from dagster_gpufair.ledger import events
from dagster_gpufair.ledger.tables import (
    ApprovalRow,
    BorrowedUseRow,
    LeaseRow,
    PromiseRow,
    RequestRow,
)

_LEASE = (
    LeaseRow.started_at,
    LeaseRow.began_at,
    LeaseRow.claimed_at,
    LeaseRow.launched_at,
    LeaseRow.warned_at,
    LeaseRow.checkpointed_at,
    LeaseRow.term_from,
    LeaseRow.notice_until,
    LeaseRow.stop_asked_at,
    LeaseRow.over_at,
)


def set_clock(session: Session, by: float, at: float) -> None:
    """The time of day was set forward by so many seconds (back if negative), and is ``at`` now."""

    def moved(*columns: Any) -> dict[Any, Any]:
        return {column: column + by for column in columns}

    waiting = select(RequestRow.id).where(RequestRow.state == "queued")
    for statement in (
        update(LeaseRow).where(LeaseRow.released_at.is_(None)).values(moved(*_LEASE)),
        update(RequestRow)
        .where(RequestRow.state.in_(("queued", "granted")))
        .values(moved(RequestRow.submitted_at)),
        update(ApprovalRow)
        .where(ApprovalRow.request_id.in_(waiting))
        .values(moved(ApprovalRow.proposed_at, ApprovalRow.decided_at)),
        update(PromiseRow).values(moved(PromiseRow.made_at)),
        update(BorrowedUseRow).values(moved(BorrowedUseRow.as_of)),
    ):
        session.execute(statement.execution_options(synchronize_session=False))
    events.append(session, "clock", at, data={"by": by})
