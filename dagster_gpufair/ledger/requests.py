"""Requests: what runs ask for, from their submission to their end.

``queued → granted → released``, or ``queued → cancelled``, or ``refused``. Grants and releases are
in `leases`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

from sqlalchemy import Select, Update, func, select, update
from sqlalchemy.orm import Session

from dagster_gpufair.ledger import events
from dagster_gpufair.ledger.columns import storable_text
from dagster_gpufair.ledger.statements import changed, chunks, insert_into
from dagster_gpufair.ledger.tables import RequestRow
from dagster_gpufair.scheduling.model import Request

RequestState = Literal["queued", "granted", "released", "cancelled", "refused"]


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """A request as the ledger knows it.

    GPU amounts in thousandths, times in seconds since the epoch, ``max_duration`` in seconds.
    ``blocked_…`` is what keeps it from starting besides the decision, ``told_…`` what the run's
    page was last made to say.
    """

    id: str
    run_id: str
    team: str
    tier: str
    pools: tuple[str, ...]
    gpus: int
    submitted_at: float
    job_name: str = ""
    location: str | None = None
    project: str | None = None
    kind: str | None = None
    source: str | None = None
    min_gpus: int | None = None
    gpus_per_node: int | None = None
    max_duration: float | None = None
    cpus: float = 0.0
    memory_gib: float = 0.0
    preempted: int = 0
    state: RequestState = "queued"
    policy_version: int | None = None
    blocked_reason: str | None = None
    blocked_message: str | None = None
    told_state: str | None = None
    told_reason: str | None = None
    told_at: float | None = None
    finished_at: float | None = None
    refusal_code: str | None = None
    refusal_message: str | None = None

    @classmethod
    def of(
        cls,
        request: Request,
        *,
        job_name: str,
        location: str | None,
        policy_version: int | None,
        run_id: str | None = None,
    ) -> RequestRecord:
        """A new one, from what admission made of a run."""
        return cls(
            id=request.id,
            run_id=run_id or request.id,
            team=request.team,
            tier=request.tier,
            pools=request.pools,
            gpus=request.gpus,
            submitted_at=request.submitted,
            job_name=job_name,
            location=location,
            project=request.project,
            kind=request.kind,
            source=request.source,
            min_gpus=request.min_gpus,
            gpus_per_node=request.gpus_per_node,
            max_duration=request.max_duration,
            cpus=request.cpus,
            memory_gib=request.memory_gib,
            preempted=request.preempted,
            policy_version=policy_version,
        )

    def to_request(self) -> Request:
        """As the decision sees it."""
        return Request(
            id=self.id,
            team=self.team,
            tier=self.tier,
            pools=self.pools,
            gpus=self.gpus,
            submitted=self.submitted_at,
            project=self.project,
            kind=self.kind,
            min_gpus=self.min_gpus,
            gpus_per_node=self.gpus_per_node,
            max_duration=self.max_duration,
            source=self.source,
            preempted=self.preempted,
            cpus=self.cpus,
            memory_gib=self.memory_gib,
        )


_COLUMNS = tuple(getattr(RequestRow, field.name) for field in fields(RequestRecord))


def add(session: Session, request: RequestRecord) -> bool:
    """Record a submitted request as queued.

    Returns:
        Whether it is new; one that is known already, in whatever state, stays as it is.
    """
    if not _insert(session, replace(request, state="queued")):
        return False
    _tell(session, "submitted", request, request.submitted_at, _asked(request))
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
        or changed(session, _queued([request.id]).values(refusal))
    ):
        return False
    data = {**_asked(request), "code": code, "message": message}
    _tell(session, "refused", request, at, data)
    return True


def open_requests(session: Session) -> Sequence[RequestRecord]:
    """All that wait or run, in no order. Made for a hundred thousand of them."""
    return _read(session, select(*_COLUMNS).where(RequestRow.state.in_(("queued", "granted"))))


def waiting(session: Session) -> Sequence[RequestRecord]:
    """All that wait, earliest submission first, then by id."""
    queued = _read(session, select(*_COLUMNS).where(RequestRow.state == "queued"))
    return sorted(queued, key=lambda request: (request.submitted_at, request.id))


def by_ids(session: Session, ids: Iterable[str]) -> Mapping[str, RequestRecord]:
    """Those of the requests that are known, by id."""
    return {
        request.id: request
        for piece in chunks(ids)
        for request in _read(session, select(*_COLUMNS).where(RequestRow.id.in_(piece)))
    }


def find(session: Session, prefix: str, limit: int = 20) -> Sequence[RequestRecord]:
    """The requests whose id begins exactly so, newest first. Any character means itself."""
    query = (
        select(*_COLUMNS)
        .where(func.substr(RequestRow.id, 1, len(prefix)) == storable_text(prefix))
        .order_by(RequestRow.submitted_at.desc(), RequestRow.id)
        .limit(limit)
    )
    return _read(session, query)


def cancel(session: Session, ids: Iterable[str], at: float, why: str) -> Sequence[str]:
    """End requests that wait, whose runs were cancelled or are gone.

    Returns:
        The ids of those that waited; the others stay as they are.
    """
    cancelled: list[str] = []
    for piece in chunks(ids):
        queued = _read(
            session,
            select(*_COLUMNS).where(RequestRow.id.in_(piece), RequestRow.state == "queued"),
        )
        waited = [request.id for request in queued]
        session.execute(_queued(waited).values(state="cancelled", finished_at=at))
        for request in queued:
            _tell(session, "cancelled", request, at, {"why": why})
        cancelled += waited
    return cancelled


def block(session: Session, blocked: Mapping[str, tuple[str, str]]) -> int:
    """Note what keeps queued requests from starting besides the decision: {id: (reason, message)}.

    Returns:
        How many rows it wrote: only those that said something else.
    """
    differing: dict[tuple[str, str], list[str]] = defaultdict(list)
    columns = (RequestRow.id, RequestRow.blocked_reason, RequestRow.blocked_message)
    for piece in chunks(blocked):
        where = (RequestRow.id.in_(piece), RequestRow.state == "queued")
        for id_, *said in session.execute(select(*columns).where(*where)):
            reason, message = blocked[id_]
            if said != [reason, storable_text(message)]:
                differing[reason, message].append(id_)
    return sum(
        changed(session, _queued(piece).values(blocked_reason=reason, blocked_message=message))
        for (reason, message), ids in differing.items()
        for piece in chunks(ids)
    )


def unblock(session: Session, ids: Iterable[str]) -> int:
    """Take back what `block` noted.

    Returns:
        How many rows it wrote: only those that were blocked.
    """
    return sum(
        changed(
            session,
            update(RequestRow)
            .where(RequestRow.id.in_(piece), RequestRow.blocked_reason.is_not(None))
            .values(blocked_reason=None, blocked_message=None)
            .execution_options(synchronize_session=False),
        )
        for piece in chunks(ids)
    )


def told(session: Session, id_: str, state: str, reason: str | None, at: float) -> None:
    """Note what the run's page says now."""
    session.execute(
        update(RequestRow)
        .where(RequestRow.id == id_)
        .values(told_state=state, told_reason=reason, told_at=at)
        .execution_options(synchronize_session=False)
    )


def _insert(session: Session, request: RequestRecord) -> bool:
    new = insert_into(session, RequestRow).values(asdict(request))
    return changed(session, new.on_conflict_do_nothing()) == 1


def _queued(ids: Collection[str]) -> Update:
    return (
        update(RequestRow)
        .where(RequestRow.id.in_(ids), RequestRow.state == "queued")
        .execution_options(synchronize_session=False)
    )


def _asked(request: RequestRecord) -> dict[str, Any]:
    """What a replay needs to know of it, besides its id."""
    said = asdict(request.to_request())
    return {key: value for key, value in said.items() if key != "id" and value is not None}


def _tell(
    session: Session, kind: str, request: RequestRecord, at: float, data: Mapping[str, Any]
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


def _read(session: Session, query: Select[Any]) -> Sequence[RequestRecord]:
    return [RequestRecord(*row) for row in session.execute(query)]
