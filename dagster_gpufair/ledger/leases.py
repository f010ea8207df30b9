"""Leases: GPUs granted to requests, until they are released, which happens exactly once.

Here they are read; `lifecycle` has what happens to them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

from sqlalchemy import Select, Subquery, literal, or_, select, union_all
from sqlalchemy.orm import Session

from dagster_gpufair.ledger.columns import Name
from dagster_gpufair.ledger.statements import chunks
from dagster_gpufair.ledger.tables import LeaseRow, RequestRow
from dagster_gpufair.scheduling.model import Cards, Class, Lease

LeaseState = Literal[
    "granted",
    "launching",
    "running",
    "notice",
    "stopping",
    "ending",
    "released",
    "recalled",
    "preempted",
]

StopCause = Literal["bound", "preemption"]
BOUND: StopCause = "bound"
"""Stopped because its ``max_duration`` is over."""
PREEMPTION: StopCause = "preemption"
"""Stopped for another, after notice."""


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """A lease as the ledger knows it.

    GPU amounts in thousandths, times in seconds since the epoch, ``max_duration`` in seconds.
    ``started_at`` is when the GPUs were given, ``began_at`` when the work on them began. ``class_`` is
    None for ungated ones, which nobody decided. ``preempted``, ``cpus`` and ``memory_gib`` are its
    request's.
    """

    id: int
    request_id: str
    run_id: str
    step_key: str
    attempt: int
    state: LeaseState
    team: str
    project: str | None
    tier: str
    kind: str | None
    source: str | None
    pool: str
    gpus: int
    nodes: Mapping[str, int]
    cards: Mapping[str, Any] | None
    devices: Mapping[str, Any] | None
    started_at: float
    began_at: float | None
    max_duration: float | None
    class_: Class | None
    policy_version: int | None
    ungated: bool
    launch_epoch: int | None
    launch_host: str | None
    processes: Mapping[str, int] | None
    claimed_at: float | None
    launched_at: float | None
    warned_at: float | None
    checkpointed_at: float | None
    term_from: float | None
    kept_until: float | None
    notice_until: float | None
    notice_for: str | None
    notice_rule: str | None
    stop_asked_at: float | None
    stop_why: StopCause | None
    stop_tries: int
    over_at: float | None
    released_at: float | None
    release_reason: str | None
    preempted: int
    cpus: float
    memory_gib: float

    @property
    def void(self) -> bool:
        """Whether it never led to a run."""
        return self.state == "recalled"

    @property
    def bound_ends(self) -> float | None:
        """When its ``max_duration`` is over; None without one, or before the work has begun."""
        if self.max_duration is None or self.began_at is None:
            return None
        return self.began_at + self.max_duration

    def to_lease(self, now: float | None = None) -> Lease:
        """As the decision sees it, by the id of its request, which has one open lease at most.

        What has not begun yet begins ``now`` at the earliest: its bound counts from then.
        """
        began = self.began_at
        if began is None and now is not None and now > self.started_at:
            began = now
        return Lease(
            id=self.request_id,
            team=self.team,
            tier=self.tier,
            pool=self.pool,
            gpus=self.gpus,
            started=self.started_at,
            began=began,
            nodes=self.nodes,
            cards=recorded_cards(self.cards),
            project=self.project,
            max_duration=self.max_duration,
            source=self.source,
            preempted=self.preempted,
            cpus=self.cpus,
            memory_gib=self.memory_gib,
            checkpointed=self.checkpointed_at,
            notice_until=self.notice_until,
            notice_for=self.notice_for,
            term_from=self.term_from,
            kept_until=self.kept_until,
            starting=self.state in ("granted", "launching"),
            # Its run is over, and nobody knows when its processes are.
            overdue=self.state == "ending",
        )


def recorded_cards(data: Mapping[str, Any] | None) -> Cards:
    """The cards of a lease as they are recorded; none where they are not."""
    return {node: tuple((card, gpus) for card, gpus in here) for node, here in (data or {}).items()}


_MOST_PAIRS = 200
"""Sources asked about in one statement; SQLite takes 500 parts of a union at most."""
_OF_THE_REQUEST = ("preempted", "cpus", "memory_gib")
_COLUMNS = tuple(
    getattr(RequestRow if field.name in _OF_THE_REQUEST else LeaseRow, field.name).label(field.name)
    for field in fields(LeaseRecord)
)


def recorded(class_: Class) -> str:
    """A class as the record has it; its label is for people, who need not tell all of them apart."""
    return class_.name.lower()


_CLASSES = {recorded(class_): class_ for class_ in Class}


def open_leases(session: Session) -> Sequence[LeaseRecord]:
    """All that hold GPUs now, oldest first."""
    return _read(session, _records().where(LeaseRow.released_at.is_(None)))


def by_id(session: Session, lease_id: int) -> LeaseRecord:
    """One lease, open or not."""
    (found,) = _read(session, _records().where(LeaseRow.id == lease_id))
    return found


def of_run(session: Session, run_id: str) -> Sequence[LeaseRecord]:
    """All a run ever had, oldest first."""
    return _read(session, _records().where(LeaseRow.run_id == run_id))


def of_requests(session: Session, request_ids: Iterable[str]) -> Sequence[LeaseRecord]:
    """All that some requests ever had, oldest first."""
    return [
        lease
        for piece in chunks(request_ids)
        for lease in _read(session, _records().where(LeaseRow.request_id.in_(piece)))
    ]


def ever(session: Session) -> Sequence[LeaseRecord]:
    """The whole record, oldest first."""
    return _read(session, _records())


def held_between(session: Session, since: float, until: float) -> Sequence[LeaseRecord]:
    """All that held GPUs at some moment after ``since`` and before ``until``, oldest first."""
    later = or_(LeaseRow.released_at.is_(None), LeaseRow.released_at > since)
    return _read(session, _records().where(later, LeaseRow.started_at < until))


def source_starts(
    session: Session, of: Iterable[tuple[str, str]] | None = None
) -> Mapping[tuple[str, str], float]:
    """The newest start of each (team, source) given, by default of those that have queued requests.

    Those that never started are left out; a launch that failed was no start. Each is found at the end of
    an index, however long its history is.
    """
    if of is None:
        queued = (
            select(RequestRow.team, RequestRow.source)
            .where(RequestRow.state == "queued", RequestRow.source.is_not(None))
            .distinct()
        )
        return _newest_starts(session, queued.subquery())
    starts: dict[tuple[str, str], float] = {}
    for piece in chunks(of, _MOST_PAIRS):
        pairs = [select(literal(team, Name()), literal(source, Name())) for team, source in piece]
        starts |= _newest_starts(session, union_all(*pairs).subquery())
    return starts


def _newest_starts(session: Session, sources: Subquery) -> dict[tuple[str, str], float]:
    team, source = sources.c
    newest = (
        select(LeaseRow.started_at)
        .where(LeaseRow.team == team, LeaseRow.source == source, LeaseRow.state != "recalled")
        .order_by(LeaseRow.started_at.desc())
        .limit(1)
        .correlate(sources)
        .scalar_subquery()
    )
    found = session.execute(select(team, source, newest))
    return {(row[0], row[1]): row[2] for row in found if row[2] is not None}


def _records() -> Select[Any]:
    return select(*_COLUMNS).join(RequestRow, RequestRow.id == LeaseRow.request_id)


def _read(session: Session, query: Select[Any]) -> Sequence[LeaseRecord]:
    """Sorted here: asked to sort by id, SQLite reads the whole table for the few open ones."""
    found = [
        LeaseRecord(**{**row, "class_": _CLASSES.get(row["class_"])})
        for row in session.execute(query).mappings()
    ]
    return sorted(found, key=lambda lease: lease.id)
