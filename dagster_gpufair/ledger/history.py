"""What the ledger remembers of single runs, for people who ask afterwards. Read only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from sqlalchemy import select
from sqlalchemy.orm import Session

from dagster_gpufair.ledger.events import Event
from dagster_gpufair.ledger.requests import RequestRecord
from dagster_gpufair.ledger.tables import EventRow, LeaseRow, RequestRow

_EVENT = tuple(getattr(EventRow, field.name) for field in fields(Event))
_REQUEST = tuple(getattr(RequestRow, field.name) for field in fields(RequestRecord))


def of_request(session: Session, request: RequestRecord) -> Sequence[Event]:
    """All that happened to a request, oldest first: also in the runs that it held GPUs in before."""
    runs = session.scalars(
        select(LeaseRow.run_id).where(LeaseRow.request_id == request.id).distinct()
    )
    ids = {request.id, request.run_id, *runs}
    query = select(*_EVENT).where(EventRow.run_id.in_(ids)).order_by(EventRow.id)
    return [Event(*row) for row in session.execute(query)]


def refused(session: Session, limit: int, team: str | None = None) -> Sequence[RequestRecord]:
    """The requests that were refused last, the newest first."""
    query = select(*_REQUEST).where(RequestRow.state == "refused")
    if team is not None:
        query = query.where(RequestRow.team == team)
    query = query.order_by(RequestRow.finished_at.desc(), RequestRow.id).limit(limit)
    return [RequestRecord(*row) for row in session.execute(query)]
