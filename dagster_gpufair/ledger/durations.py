"""How long the runs of a job usually take, from those that succeeded of late."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from statistics import median
from typing import Any

from sqlalchemy import Select, func, literal_column, select, union_all
from sqlalchemy.orm import Session

from dagster_gpufair.ledger.statements import chunks
from dagster_gpufair.ledger.tables import LeaseRow, RequestRow

COUNTED = 20
"""Of a job, so many of its last successes count."""
FEWEST = 3
"""With fewer successes nothing is usual yet."""
LOOKED_AT = 60
"""Of a job, so many of its last ends are looked at: one that always fails must not cost a long search."""
_JOBS_AT_ONCE = 50

Job = tuple[str, str]
"""A team, and the name of a job."""


def usual_durations(
    session: Session, now: float, jobs: Iterable[Job] | None = None
) -> Mapping[Job, float]:
    """The median of how long the last successful runs of each job lasted up to ``now``, in seconds.

    What failed or was stopped says little about how long the work takes, and what was found running
    without a grant has no known start. ``jobs`` are by default those that hold GPUs; one with too few
    successes is left out.
    """
    lasted: dict[Job, list[float]] = {}
    for piece in chunks(_running(session) if jobs is None else set(jobs), _JOBS_AT_ONCE):
        found = session.execute(union_all(*(_last_successes(*job, now) for job in piece)))
        for row in sorted(found, key=lambda row: row.released_at, reverse=True):
            lasted.setdefault((row.team, row.job_name), []).append(row.released_at - row.started_at)
    return {
        job: median(durations[:COUNTED])
        for job, durations in lasted.items()
        if len(durations) >= FEWEST
    }


def usual_ends(session: Session, now: float) -> Mapping[str, float]:
    """When each open lease will probably be over, by the id of its request.

    Left out are those whose job has no usual duration, or that have lasted longer already.
    """
    open_now = list(_open(session))
    usual = usual_durations(session, now, {(row.team, row.job_name) for row in open_now})
    ends: dict[str, float] = {}
    for row in open_now:
        duration = usual.get((row.team, row.job_name))
        if duration is None or row.ungated:
            continue
        most = duration if row.max_duration is None else min(duration, row.max_duration)
        if row.started_at + most > now:
            ends[row.request_id] = row.started_at + most
    return ends


def usual_lengths(session: Session, now: float) -> Mapping[str, float]:
    """How long what waits will probably take, in seconds, by the id of its request."""
    columns = (RequestRow.id, RequestRow.team, RequestRow.job_name)
    waiting = list(session.execute(select(*columns).where(RequestRow.state == "queued")))
    usual = usual_durations(session, now, {(row.team, row.job_name) for row in waiting})
    return {row.id: usual[job] for row in waiting if (job := (row.team, row.job_name)) in usual}


def _running(session: Session) -> set[Job]:
    return {(row.team, row.job_name) for row in _open(session)}


def _open(session: Session) -> Iterator[Any]:
    columns = (
        LeaseRow.request_id,
        LeaseRow.team,
        RequestRow.job_name,
        func.coalesce(LeaseRow.began_at, LeaseRow.started_at).label("started_at"),
        LeaseRow.max_duration,
        LeaseRow.ungated,
    )
    query = select(*columns).join(RequestRow, RequestRow.id == LeaseRow.request_id)
    yield from session.execute(query.where(LeaseRow.released_at.is_(None)))


def _last_successes(team: str, job: str, now: float) -> Select[Any]:
    """Of the last leases of a job that have ended, those whose run succeeded."""
    last = (
        select(
            RequestRow.team,
            RequestRow.job_name,
            # How long the work took, not how long its container did.
            func.coalesce(LeaseRow.began_at, LeaseRow.started_at).label("started_at"),
            LeaseRow.released_at,
            LeaseRow.release_reason,
            LeaseRow.state,
            LeaseRow.ungated,
        )
        .join(RequestRow, RequestRow.id == LeaseRow.request_id)
        .where(
            RequestRow.team == team,
            RequestRow.job_name == job,
            # Spelt out as in the index, which is not found for a parameter.
            RequestRow.state == literal_column("'released'"),
            RequestRow.finished_at <= now,
            LeaseRow.released_at.is_not(None),
        )
        .order_by(RequestRow.finished_at.desc())
        .limit(LOOKED_AT)
        .subquery()
    )
    return select(last.c.team, last.c.job_name, last.c.started_at, last.c.released_at).where(
        last.c.release_reason == "success", last.c.state == "released", last.c.ungated.is_(False)
    )
