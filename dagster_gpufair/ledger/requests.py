"""Requests: what runs ask for, from their submission to their end.

Here they are read, and noted what keeps them waiting and what their pages say; `lifecycle` has what
happens to them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

from sqlalchemy import Select, Update, and_, func, or_, select, update
from sqlalchemy.orm import Session

from dagster_gpufair.ledger.columns import storable_text
from dagster_gpufair.ledger.statements import begins_with, changed, chunks
from dagster_gpufair.ledger.tables import LeaseRow, RequestRow
from dagster_gpufair.scheduling.model import Promise, Request

RequestState = Literal["queued", "granted", "released", "cancelled", "refused"]


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """A request as the ledger knows it: of a run, or of one attempt of a step.

    ``id`` is the id of the run that it was submitted for, and stays the same when another run goes on
    with what was preempted; ``run_id`` is the one it is for now. GPU amounts in thousandths, times in seconds
    since the epoch, ``max_duration`` in seconds. ``continues`` is the run that was stopped, while the
    one that goes on with its work is not in the queue yet.
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
    step_key: str = ""
    attempt: int = 1
    job_name: str = ""
    location: str | None = None
    project: str | None = None
    kind: str | None = None
    source: str | None = None
    launched_by: Mapping[str, str] | None = None
    min_gpus: int | None = None
    gpus_per_node: int | None = None
    max_duration: float | None = None
    cpus: float = 0.0
    memory_gib: float = 0.0
    preempted: int = 0
    priority: int = 0
    continues: str | None = None
    state: RequestState = "queued"
    policy_version: int | None = None
    blocked_reason: str | None = None
    blocked_message: str | None = None
    told_state: str | None = None
    told_reason: str | None = None
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
        launched_by: Mapping[str, str] | None = None,
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
            launched_by=launched_by,
            min_gpus=request.min_gpus,
            gpus_per_node=request.gpus_per_node,
            max_duration=request.max_duration,
            cpus=request.cpus,
            memory_gib=request.memory_gib,
            preempted=request.preempted,
            priority=request.priority,
            policy_version=policy_version,
        )

    def to_request(self, promised: Promise | None = None, rejected: bool = False) -> Request:
        """As the decision sees it, with what is promised to it, and whether a person said no for it."""
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
            priority=self.priority,
            cpus=self.cpus,
            memory_gib=self.memory_gib,
            promised=promised,
            rejected=rejected,
        )


_COLUMNS = tuple(getattr(RequestRow, field.name) for field in fields(RequestRecord))


def open_requests(session: Session) -> Sequence[RequestRecord]:
    """All that wait or run, in no order. Made for a hundred thousand of them."""
    return _read(session, select(*_COLUMNS).where(RequestRow.state.in_(("queued", "granted"))))


def waiting(session: Session) -> Sequence[RequestRecord]:
    """All that wait, earliest submission first, then by id."""
    queued = _read(session, select(*_COLUMNS).where(RequestRow.state == "queued"))
    return sorted(queued, key=lambda request: (request.submitted_at, request.id))


def count_waiting(session: Session) -> int:
    """How many wait."""
    query = select(func.count()).select_from(RequestRow).where(RequestRow.state == "queued")
    return session.scalar(query) or 0


def by_ids(session: Session, ids: Iterable[str]) -> Mapping[str, RequestRecord]:
    """Those of the requests that are known, by id."""
    return {
        request.id: request
        for piece in chunks(ids)
        for request in _read(session, select(*_COLUMNS).where(RequestRow.id.in_(piece)))
    }


def find(session: Session, prefix: str, limit: int = 20) -> Sequence[RequestRecord]:
    """The requests that are or were for a run whose id begins exactly so, newest first.

    Any character means itself.
    """
    prefix = storable_text(prefix)
    first = begins_with(session, RequestRow.id, prefix)
    # Few were ever preempted: only those have had more runs than one.
    had = select(LeaseRow.request_id).where(
        LeaseRow.request_id == RequestRow.id, begins_with(session, LeaseRow.run_id, prefix)
    )
    later = or_(begins_with(session, RequestRow.run_id, prefix), had.exists())
    found = {
        request.id: request
        for where in (first, and_(RequestRow.preempted > 0, later))
        for request in _read(
            session,
            select(*_COLUMNS)
            .where(where)
            .order_by(RequestRow.submitted_at.desc(), RequestRow.id)
            .limit(limit),
        )
    }
    newest_first = sorted(found.values(), key=lambda request: (-request.submitted_at, request.id))
    return newest_first[:limit]


def runs_that_go_on(session: Session) -> Mapping[str, str]:
    """Of the open requests that were preempted, the runs that they are for now, by id."""
    query = select(RequestRow.id, RequestRow.run_id).where(
        RequestRow.state.in_(("queued", "granted")), RequestRow.run_id != RequestRow.id
    )
    return {row.id: row.run_id for row in session.execute(query) if row.run_id}


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


def over_before(session: Session, before: float, limit: int) -> Sequence[RequestRecord]:
    """Those that were over before a moment, the oldest ends first."""
    query = (
        select(*_COLUMNS)
        .where(RequestRow.finished_at < before)
        .order_by(RequestRow.finished_at)
        .limit(limit)
    )
    return _read(session, query)


def untold(session: Session, limit: int) -> Sequence[RequestRecord]:
    """Requests that wait no more and whose pages say something else, the newest ends first."""
    query = (
        select(*_COLUMNS)
        .where(
            RequestRow.told_state.is_not(None),
            RequestRow.told_state != RequestRow.state,
            RequestRow.state != "queued",
        )
        .order_by(RequestRow.finished_at.desc())
        .limit(limit)
    )
    return _read(session, query)


def told(session: Session, run_id: str, state: str, reason: str | None) -> None:
    """Note what a run's page says now."""
    session.execute(
        update(RequestRow)
        .where(RequestRow.run_id == run_id)
        .values(told_state=state, told_reason=reason)
        .execution_options(synchronize_session=False)
    )


def to_be_told(session: Session, id_: str) -> None:
    """Whatever becomes of a request from now on is to be said: its page says at most that it waits."""
    session.execute(
        update(RequestRow)
        .where(RequestRow.id == id_, RequestRow.told_state.is_(None))
        .values(told_state="waiting")
        .execution_options(synchronize_session=False)
    )


def by_runs(session: Session, run_ids: Iterable[str]) -> Mapping[str, RequestRecord]:
    """The requests of whole runs that are known, by the id of the run."""
    return {
        request.run_id: request
        for piece in chunks(run_ids)
        for request in _read(
            session,
            select(*_COLUMNS).where(RequestRow.run_id.in_(piece), RequestRow.step_key == ""),
        )
    }


def _queued(ids: Collection[str]) -> Update:
    return (
        update(RequestRow)
        .where(RequestRow.id.in_(ids), RequestRow.state == "queued")
        .execution_options(synchronize_session=False)
    )


def _read(session: Session, query: Select[Any]) -> Sequence[RequestRecord]:
    return [RequestRecord(*row) for row in session.execute(query)]
