"""What happens to requests."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from sqlalchemy import Update, update
from sqlalchemy.orm import Session

from dagster_gpufair.ledger import events
from dagster_gpufair.ledger.events import EventKind
from dagster_gpufair.ledger.lifecycle.table import REQUESTS
from dagster_gpufair.ledger.requests import RequestRecord, by_ids, by_runs
from dagster_gpufair.ledger.statements import changed, chunks, insert_into
from dagster_gpufair.ledger.tables import RequestRow


def submit(session: Session, request: RequestRecord) -> bool:
    """Record a submitted request as queued.

    Returns:
        Whether it is new; one that is known already, in whatever state, stays as it is.
    """
    if not _insert(session, replace(request, state="queued")):
        return False
    _tell(session, "submitted", request, request.submitted_at, asked(request))
    return True


def waits(session: Session, run_id: str, reason: str, why: str, at: float) -> bool:
    """Record that a queued run waits for another reason than before. It changes no state.

    Returns:
        Whether it was recorded: a run that does not wait has no reason.
    """
    request = by_runs(session, [run_id]).get(run_id)
    if request is None or request.state != "queued":
        return False
    _tell(session, "waits", request, at, {"reason": reason, "why": why})
    return True


def refuse(session: Session, request: RequestRecord, code: str, message: str, at: float) -> bool:
    """Record that a request can never start: at its submission, or while it waits.

    Returns:
        Whether it was refused now; one that has been refused, granted or ended before stays so.
    """
    refusal: dict[str, Any] = {
        "state": "refused",
        "finished_at": at,
        "refusal_code": code,
        "refusal_message": message,
    }
    if not (
        _insert(session, replace(request, **refusal))
        or changed(session, moving("refuse", [request.id]).values(refusal))
    ):
        return False
    unread = [name for name in ("team", "tier", "gpus") if not getattr(request, name)]
    data = {**asked(request), "code": code, "message": message}
    for name in unread:
        data.pop(name, None)
    _tell(session, "refused", request, at, data)
    return True


def cancel(session: Session, ids: Iterable[str], at: float, why: str) -> Sequence[str]:
    """End requests that wait, whose runs were cancelled or are gone.

    Returns:
        The ids of those that waited; the others stay as they are.
    """
    cancelled: list[str] = []
    for piece in chunks(ids):
        queued = {
            id_: request
            for id_, request in by_ids(session, piece).items()
            if request.state == "queued"
        }
        session.execute(moving("cancel", list(queued)).values(finished_at=at))
        for request in queued.values():
            _tell(session, "cancelled", request, at, {"why": why})
        cancelled += queued
    return cancelled


def to_go_on(session: Session, request: RequestRecord, run_id: str, at: float) -> bool:
    """The run is there that goes on with a request that was preempted; `goes_on` once it is queued.

    Returns:
        Whether that is news.
    """
    moved = changed(
        session,
        _waiting(request.id)
        .where(RequestRow.continues.is_not(None), RequestRow.run_id != run_id)
        .values(run_id=run_id),
    )
    if moved:
        data = {"of": request.continues}
        _tell(session, "continued", replace(request, run_id=run_id), at, data)
    return bool(moved)


def goes_on(session: Session, request_id: str) -> bool:
    """The run that goes on with a request is in the queue: it waits like any other."""
    return bool(changed(session, _waiting(request_id).values(continues=None)))


def asked(request: RequestRecord) -> dict[str, Any]:
    """What a replay needs to know of a request, besides its id."""
    said = asdict(request.to_request())
    return {
        key: value
        for key, value in said.items()
        if key not in ("id", "rejected") and value is not None
    }


def moving(transition: str, ids: Collection[str]) -> Update:
    """A transition of requests, to which values can be added."""
    leaves, enters, _ = REQUESTS[transition]
    return (
        update(RequestRow)
        .where(RequestRow.id.in_(ids), RequestRow.state.in_(leaves))
        .values(state=enters)
        .execution_options(synchronize_session=False)
    )


def _waiting(request_id: str) -> Update:
    return (
        update(RequestRow)
        .where(RequestRow.id == request_id, RequestRow.state == "queued")
        .execution_options(synchronize_session=False)
    )


def _insert(session: Session, request: RequestRecord) -> bool:
    new = insert_into(session, RequestRow).values(asdict(request))
    return changed(session, new.on_conflict_do_nothing()) == 1


def _tell(
    session: Session, kind: EventKind, request: RequestRecord, at: float, data: Mapping[str, Any]
) -> None:
    events.append(
        session,
        kind,
        at,
        run_id=request.run_id,
        team=request.team,
        pool=request.pools[0] if len(request.pools) == 1 else None,
        data={"request": request.id, **data},
    )
