"""Promises: the GPUs that are reserved for a request while its victims are stopped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from dagster_gpufair.ledger import events
from dagster_gpufair.ledger.requests import RequestRecord
from dagster_gpufair.ledger.statements import changed, insert_into
from dagster_gpufair.ledger.tables import PromiseRow
from dagster_gpufair.scheduling.model import Promise


def current(session: Session) -> Mapping[str, Promise]:
    """All promises that hold, by the id of the request."""
    columns = (PromiseRow.request_id, PromiseRow.pool, PromiseRow.gpus, PromiseRow.nodes)
    return {
        row.request_id: Promise(row.pool, row.gpus, row.nodes)
        for row in session.execute(select(*columns))
    }


def make(
    session: Session,
    request: RequestRecord,
    promise: Promise,
    victims: Sequence[Mapping[str, Any]],
    policy_version: int | None,
    at: float,
) -> None:
    """Keep GPUs for a request: instead of what it was promised before, if anything."""
    values = {
        "request_id": request.id,
        "pool": promise.pool,
        "gpus": promise.gpus,
        "nodes": dict(promise.nodes),
        "made_at": at,
        "policy_version": policy_version,
    }
    new = insert_into(session, PromiseRow).values(values)
    session.execute(new.on_conflict_do_update(index_elements=[PromiseRow.request_id], set_=values))
    data = {
        "request": request.id,
        "gpus": promise.gpus,
        "nodes": dict(promise.nodes),
        "victims": list(victims),
        "policy_version": policy_version,
    }
    _tell(session, "promised", request, promise.pool, at, data)


def end(session: Session, request: RequestRecord, why: str, at: float) -> bool:
    """A promise holds no more: its request has started, or left, or nobody may leave for it.

    Returns:
        Whether there was one.
    """
    gone = (
        delete(PromiseRow)
        .where(PromiseRow.request_id == request.id)
        .execution_options(synchronize_session=False)
    )
    if not changed(session, gone):
        return False
    _tell(session, "withdrawn", request, None, at, {"request": request.id, "why": why})
    return True


def _tell(
    session: Session,
    kind: events.EventKind,
    request: RequestRecord,
    pool: str | None,
    at: float,
    data: Mapping[str, Any],
) -> None:
    events.append(session, kind, at, run_id=request.run_id, team=request.team, pool=pool, data=data)
