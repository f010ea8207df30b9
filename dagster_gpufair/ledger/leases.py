"""Leases: GPUs granted to requests, until they are released, which happens exactly once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from sqlalchemy import Select, Update, func, insert, or_, select, tuple_, update
from sqlalchemy.orm import Session

from dagster_gpufair.ledger import events
from dagster_gpufair.ledger.errors import NotQueued
from dagster_gpufair.ledger.requests import RequestRecord
from dagster_gpufair.ledger.statements import changed, chunks, insert_into
from dagster_gpufair.ledger.tables import LeaseRow, RequestRow
from dagster_gpufair.scheduling.model import Class, Lease


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """A lease as the ledger knows it.

    GPU amounts in thousandths, times in seconds since the epoch, ``max_duration`` in seconds.
    ``class_`` is None for ungated ones, which nobody decided. ``preempted``, ``cpus`` and
    ``memory_gib`` are its request's.
    """

    id: int
    request_id: str
    run_id: str
    team: str
    project: str | None
    tier: str
    kind: str | None
    source: str | None
    pool: str
    gpus: int
    nodes: Mapping[str, int]
    started_at: float
    max_duration: float | None
    class_: Class | None
    policy_version: int | None
    ungated: bool
    void: bool
    launch_epoch: int | None
    warned_at: float | None
    released_at: float | None
    release_reason: str | None
    preempted: int
    cpus: float
    memory_gib: float

    def to_lease(self) -> Lease:
        """As the decision sees it, by the id of its request, which has one open lease at most."""
        return Lease(
            id=self.request_id,
            team=self.team,
            tier=self.tier,
            pool=self.pool,
            gpus=self.gpus,
            started=self.started_at,
            nodes=self.nodes,
            project=self.project,
            max_duration=self.max_duration,
            source=self.source,
            preempted=self.preempted,
            cpus=self.cpus,
            memory_gib=self.memory_gib,
        )


_OF_THE_REQUEST = ("preempted", "cpus", "memory_gib")
_COLUMNS = tuple(
    getattr(RequestRow if field.name in _OF_THE_REQUEST else LeaseRow, field.name).label(field.name)
    for field in fields(LeaseRecord)
)


def recorded(class_: Class) -> str:
    """A class as the record has it; its label is for people, who need not tell all of them apart."""
    return class_.name.lower()


_CLASSES = {recorded(class_): class_ for class_ in Class}


def grant(
    session: Session,
    request_id: str,
    *,
    pool: str,
    gpus: int,
    nodes: Mapping[str, int],
    class_: Class,
    at: float,
    policy_version: int,
    data: Mapping[str, Any] | None = None,
) -> int:
    """Give GPUs to a queued request, which is granted then.

    ``policy_version`` is the one it was decided by; ``data`` goes into the event, for people and
    for replay.

    Returns:
        The lease's id.

    Raises:
        NotQueued: if the request does not wait.
    """
    taken = changed(
        session,
        update(RequestRow)
        .where(RequestRow.id == request_id, RequestRow.state == "queued")
        .values(
            state="granted",
            policy_version=policy_version,
            blocked_reason=None,
            blocked_message=None,
        )
        .execution_options(synchronize_session=False),
    )
    if not taken:
        raise NotQueued(
            f"Request {request_id} does not wait for GPUs, so it cannot be granted any."
        )
    asked = select(
        RequestRow.run_id,
        RequestRow.team,
        RequestRow.project,
        RequestRow.tier,
        RequestRow.kind,
        RequestRow.source,
        RequestRow.max_duration,
    ).where(RequestRow.id == request_id)
    values = {
        **session.execute(asked).mappings().one(),
        "request_id": request_id,
        "pool": pool,
        "gpus": gpus,
        "nodes": dict(nodes),
        "class_": recorded(class_),
        "policy_version": policy_version,
    }
    return _begin(session, "granted", values, at, data)


def ungated(
    session: Session, request: RequestRecord, pool: str, nodes: Mapping[str, int], at: float
) -> int | None:
    """Record GPUs that a run uses without having been granted them.

    ``request`` says what it uses; one that waits counts as granted then.

    Returns:
        The lease's id; None if it has an open lease.
    """
    if session.scalar(
        select(LeaseRow.id).where(LeaseRow.request_id == request.id, LeaseRow.released_at.is_(None))
    ):
        return None
    state = {"state": "granted", "finished_at": None}
    known = insert_into(session, RequestRow).values({**asdict(request), **state})
    session.execute(
        known.on_conflict_do_update(
            index_elements=[RequestRow.id],
            set_={**state, "blocked_reason": None, "blocked_message": None},
        )
    )
    values = {
        "request_id": request.id,
        "run_id": request.run_id,
        "team": request.team,
        "project": request.project,
        "tier": request.tier,
        "kind": request.kind,
        "source": request.source,
        "max_duration": request.max_duration,
        "pool": pool,
        "gpus": request.gpus,
        "nodes": dict(nodes),
        "ungated": True,
    }
    return _begin(session, "ungated", values, at, None)


def release(
    session: Session,
    lease_id: int,
    at: float,
    reason: str,
    request_state: Literal["released", "cancelled"] = "released",
) -> bool:
    """End a lease and its request.

    Returns:
        Whether it was this call that ended it: a lease ends once, however often and by whomever
        that is asked.
    """
    return _end(
        session,
        lease_id,
        at,
        reason,
        {"state": request_state, "finished_at": at},
    )


def requeue(
    session: Session,
    lease_id: int,
    at: float,
    reason: str,
    blocked: tuple[str, str] | None = None,
) -> bool:
    """End a lease whose launch could not happen; its request waits again, as if never granted.

    ``blocked`` (reason, message) keeps it waiting until it is unblocked, where trying again at once
    would fail again.

    Returns:
        Whether it was this call that ended it.
    """
    blocked_reason, blocked_message = blocked or (None, None)
    again = {
        "state": "queued",
        "blocked_reason": blocked_reason,
        "blocked_message": blocked_message,
    }
    return _end(session, lease_id, at, reason, again, kind="requeued")


def claim_launch(session: Session, lease_id: int, epoch: int) -> bool:
    """Take on launching the run of a lease, as the writer of grants with this epoch.

    Returns:
        Whether it may be launched now: the lease is open, and no writer of this epoch or a later
        one has taken it on.
    """
    unclaimed = or_(LeaseRow.launch_epoch.is_(None), LeaseRow.launch_epoch < epoch)
    return bool(changed(session, _if_open(lease_id).where(unclaimed).values(launch_epoch=epoch)))


def warned(session: Session, lease_id: int, at: float) -> bool:
    """Note that the owner was told that the lease's time is nearly over.

    Returns:
        Whether this is the first time, so that the notice is given once.
    """
    first = _if_open(lease_id).where(LeaseRow.warned_at.is_(None)).values(warned_at=at)
    return bool(changed(session, first))


def open_leases(session: Session) -> Sequence[LeaseRecord]:
    """All that hold GPUs now, oldest first."""
    return _read(session, _records().where(LeaseRow.released_at.is_(None)))


def of_run(session: Session, run_id: str) -> Sequence[LeaseRecord]:
    """All a run ever had, oldest first."""
    return _read(session, _records().where(LeaseRow.run_id == run_id))


def ever(session: Session) -> Sequence[LeaseRecord]:
    """The whole record, oldest first."""
    return _read(session, _records())


def source_starts(
    session: Session, of: Iterable[tuple[str, str]] | None = None
) -> Mapping[tuple[str, str], float]:
    """The newest start of each (team, source) given, by default of those that have queued requests.

    Those that never started are left out; a launch that failed was no start.
    """
    if of is None:
        query = (
            select(RequestRow.team, RequestRow.source)
            .where(RequestRow.state == "queued", RequestRow.source.is_not(None))
            .distinct()
        )
        of = [(team, source) for team, source in session.execute(query)]
    starts: dict[tuple[str, str], float] = {}
    for piece in chunks(of):
        query_starts = (
            select(LeaseRow.team, LeaseRow.source, func.max(LeaseRow.started_at))
            .where(tuple_(LeaseRow.team, LeaseRow.source).in_(piece), LeaseRow.void.is_(False))
            .group_by(LeaseRow.team, LeaseRow.source)
        )
        for team, source, newest in session.execute(query_starts):
            starts[team, source] = newest
    return starts


def _begin(
    session: Session,
    kind: str,
    values: Mapping[str, Any],
    at: float,
    data: Mapping[str, Any] | None,
) -> int:
    row = {"ungated": False, "void": False, **values, "started_at": at}
    lease_id = session.execute(insert(LeaseRow).values(row)).inserted_primary_key[0]  # type: ignore[attr-defined]
    events.append(
        session,
        kind,
        at,
        run_id=row["run_id"],
        team=row["team"],
        pool=row["pool"],
        data={
            "lease": lease_id,
            "request": row["request_id"],
            "gpus": row["gpus"],
            "nodes": row["nodes"],
            "class": row.get("class_"),
            "policy_version": row.get("policy_version"),
            **(data or {}),
        },
    )
    return int(lease_id)


def _end(
    session: Session,
    lease_id: int,
    at: float,
    reason: str,
    request_values: Mapping[str, Any],
    kind: str = "released",
) -> bool:
    found = session.execute(
        select(
            LeaseRow.request_id,
            LeaseRow.run_id,
            LeaseRow.team,
            LeaseRow.pool,
            LeaseRow.gpus,
            LeaseRow.started_at,
        ).where(LeaseRow.id == lease_id)
    ).one_or_none()
    if found is None:
        return False
    # Clocks of two machines differ; a lease does not end before it began.
    at = max(at, found.started_at)
    ended = changed(
        session,
        _if_open(lease_id).values(released_at=at, release_reason=reason, void=kind == "requeued"),
    )
    if not ended:
        return False
    session.execute(
        update(RequestRow)
        .where(RequestRow.id == found.request_id)
        .values(request_values)
        .execution_options(synchronize_session=False)
    )
    events.append(
        session,
        kind,
        at,
        run_id=found.run_id,
        team=found.team,
        pool=found.pool,
        data={
            "lease": lease_id,
            "request": found.request_id,
            "gpus": found.gpus,
            "held": at - found.started_at,
            "reason": reason,
        },
    )
    return True


def _if_open(lease_id: int) -> Update:
    """A change to a lease that holds only while nobody has released it."""
    return (
        update(LeaseRow)
        .where(LeaseRow.id == lease_id, LeaseRow.released_at.is_(None))
        .execution_options(synchronize_session=False)
    )


def _records() -> Select[Any]:
    return select(*_COLUMNS).join(RequestRow, RequestRow.id == LeaseRow.request_id)


def _read(session: Session, query: Select[Any]) -> Sequence[LeaseRecord]:
    """Sorted here: asked to sort by id, SQLite reads the whole table for the few open ones."""
    found = [
        LeaseRecord(**{**row, "class_": _CLASSES.get(row["class_"])})
        for row in session.execute(query).mappings()
    ]
    return sorted(found, key=lambda lease: lease.id)
