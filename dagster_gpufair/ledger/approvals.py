"""Actions that await a person: proposed by a pass, decided by a person, and void once nobody needs them.

A proposal names the request that it is for, and the leases that would be stopped. What was approved is acted
on by the next pass, if it still wants just that. What was rejected is not asked again: nobody is stopped for
that request as long as it waits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from dagster_gpufair.ledger import events
from dagster_gpufair.ledger.requests import RequestRecord
from dagster_gpufair.ledger.statements import changed, insert_into
from dagster_gpufair.ledger.tables import ApprovalRow, RequestRow

ApprovalState = Literal["proposed", "approved", "rejected", "withdrawn", "done"]


@dataclass(frozen=True, slots=True)
class Approval:
    """One of them. ``data`` has ``pool``, ``gpus`` and ``victims``: each ``lease``, ``run``, ``rule``.

    GPU amounts in thousandths, times in seconds since the epoch.
    """

    id: int
    request_id: str
    data: Mapping[str, Any]
    state: ApprovalState
    proposed_at: float
    decided_at: float | None
    decided_by: str | None
    reason: str | None


_COLUMNS = tuple(getattr(ApprovalRow, field.name) for field in fields(Approval))


def in_state(session: Session, state: ApprovalState) -> Mapping[str, Approval]:
    """Those in a state, the newest of each request, by the request's id; only of requests that wait.

    What was asked for a request before it had its GPUs, and was stopped, counts no more.
    """
    query = (
        select(*_COLUMNS)
        .join(RequestRow, RequestRow.id == ApprovalRow.request_id)
        .where(
            ApprovalRow.state == state,
            RequestRow.state == "queued",
            ApprovalRow.proposed_at >= RequestRow.submitted_at,
        )
        .order_by(ApprovalRow.id)
    )
    return {row.request_id: Approval(*row) for row in session.execute(query)}


def newest(session: Session, limit: int) -> Sequence[Approval]:
    """The newest, whatever became of them, newest first."""
    query = select(*_COLUMNS).order_by(ApprovalRow.id.desc()).limit(limit)
    return [Approval(*row) for row in session.execute(query)]


def propose(
    session: Session, request: RequestRecord, pool: str, data: Mapping[str, Any], at: float
) -> None:
    """Ask a person whether leases may be stopped for a request; what was asked before is void."""
    before = in_state(session, "proposed").get(request.id)
    if before is not None and before.data == data:
        return
    withdraw(session, request, "asked anew", at)
    session.execute(
        insert_into(session, ApprovalRow).values(
            action="preempt",
            request_id=request.id,
            data=dict(data),
            state="proposed",
            proposed_at=at,
        )
    )
    _tell(session, "proposed", request, pool, at, {"request": request.id, **data})


def decide(
    session: Session,
    request: RequestRecord,
    as_: Literal["approved", "rejected"],
    by: str,
    reason: str,
    at: float,
) -> bool:
    """A person says yes or no to what is proposed for a request.

    Returns:
        Whether anything was.
    """
    values = {"decided_at": at, "decided_by": by, "reason": reason}
    if not _move(session, request, ("proposed",), as_, **values):
        return False
    data = {"request": request.id, "as": as_, "by": by, "why": reason}
    _tell(session, "decided", request, None, at, data)
    return True


def done(session: Session, request: RequestRecord) -> None:
    """What was approved has been acted on."""
    _move(session, request, ("approved",), "done")


def withdraw(session: Session, request: RequestRecord, why: str, at: float) -> bool:
    """Nobody needs to be asked any more, and what was approved is not needed.

    Returns:
        Whether anything was proposed, or approved and not acted on yet.
    """
    values = {"decided_at": at, "reason": why}
    if not _move(session, request, ("proposed", "approved"), "withdrawn", **values):
        return False
    data = {"request": request.id, "as": "withdrawn", "why": why}
    _tell(session, "decided", request, None, at, data)
    return True


def _move(
    session: Session,
    request: RequestRecord,
    leaves: Sequence[ApprovalState],
    enters: ApprovalState,
    **values: Any,
) -> bool:
    moved = (
        update(ApprovalRow)
        .where(ApprovalRow.request_id == request.id, ApprovalRow.state.in_(leaves))
        .values(state=enters, **values)
        .execution_options(synchronize_session=False)
    )
    return bool(changed(session, moved))


def _tell(
    session: Session,
    kind: events.EventKind,
    request: RequestRecord,
    pool: str | None,
    at: float,
    data: Mapping[str, Any],
) -> None:
    events.append(session, kind, at, run_id=request.run_id, team=request.team, pool=pool, data=data)
