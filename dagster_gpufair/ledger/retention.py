"""How much history is kept: what is older is summed up by day, and deleted in small bites.

Decisions lose nothing by it. What waits and what is held stays, whole; and of a source from which something
waits, its starts since then.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timezone

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from dagster_gpufair.ledger import leases, requests
from dagster_gpufair.ledger.leases import LeaseRecord
from dagster_gpufair.ledger.requests import RequestRecord
from dagster_gpufair.ledger.statements import changed, insert_into
from dagster_gpufair.ledger.tables import (
    ApprovalRow,
    EventRow,
    LeaseRow,
    PastUseRow,
    PromiseRow,
    RequestRow,
)

BITE = 200
"""So many requests are pruned in one transaction, and so many events that are of none."""
_OF_NO_RUN = ("pass",)
"""Events without a run that are pruned; what changed the rules, or the clock, is kept for ever."""

_Key = tuple[str, str, str, str, str, str, str]


def prune(session: Session, before: float) -> int:
    """Take one bite of what was over before that moment (seconds since the epoch).

    Returns:
        How much it was; less than `BITE` when there is no more of it.
    """
    oldest = session.scalar(
        select(func.min(RequestRow.submitted_at)).where(RequestRow.state == "queued")
    )
    before = before if oldest is None else min(before, oldest)
    over = requests.over_before(session, before, BITE)
    ids = [request.id for request in over]
    run_ids = {request.run_id for request in over}
    if over:
        had = leases.of_requests(session, ids)
        _sum_up(session, over, had)
        run_ids |= {lease.run_id for lease in had}
        for statement in (
            delete(EventRow).where(EventRow.run_id.in_(run_ids)),
            delete(LeaseRow).where(LeaseRow.request_id.in_(ids)),
            delete(PromiseRow).where(PromiseRow.request_id.in_(ids)),
            delete(ApprovalRow).where(ApprovalRow.request_id.in_(ids)),
            delete(RequestRow).where(RequestRow.id.in_(ids)),
        ):
            session.execute(statement.execution_options(synchronize_session=False))
    # Of the events that old, those of runs are gone by then.
    return BITE if len(over) == BITE else max(len(over), _prune_passes(session, before))


def past_use(session: Session) -> Sequence[PastUseRow]:
    """All that was summed up, by day."""
    return session.scalars(select(PastUseRow).order_by(PastUseRow.day)).all()


def _prune_passes(session: Session, before: float) -> int:
    old = (
        select(EventRow.id)
        .where(EventRow.at < before, EventRow.run_id.is_(None), EventRow.kind.in_(_OF_NO_RUN))
        .order_by(EventRow.at)
        .limit(BITE)
    )
    gone = delete(EventRow).where(EventRow.id.in_(session.scalars(old).all()))
    return changed(session, gone.execution_options(synchronize_session=False))


def _sum_up(session: Session, over: Iterable[RequestRecord], had: Iterable[LeaseRecord]) -> None:
    """Add to each day's sums what ended on it."""
    by_request: dict[str, list[LeaseRecord]] = {}
    for lease in had:
        if not lease.void:
            by_request.setdefault(lease.request_id, []).append(lease)
    sums: dict[_Key, tuple[int, float, float]] = {}
    for request in over:
        assert request.finished_at is not None
        of_it = by_request.get(request.id, [])
        last = of_it[-1] if of_it else None
        key = (
            datetime.fromtimestamp(request.finished_at, timezone.utc).date().isoformat(),
            request.team,
            request.project or "",
            request.tier,
            request.kind or "",
            last.pool if last else "",
            (last.release_reason if last else None) or request.state,
        )
        used = sum(
            lease.gpus / 1000 * ((lease.released_at or lease.started_at) - lease.started_at)
            for lease in of_it
        )
        until = of_it[0].started_at if of_it else request.finished_at
        count, seconds, waited = sums.get(key, (0, 0.0, 0.0))
        waited += max(0.0, until - request.submitted_at)
        sums[key] = count + 1, seconds + used, waited
    for key, (count, seconds, waited) in sums.items():
        new = insert_into(session, PastUseRow).values(
            **dict(zip(_NAMES, key, strict=True)),
            requests=count,
            gpu_seconds=seconds,
            waited=waited,
        )
        session.execute(
            new.on_conflict_do_update(
                index_elements=list(_NAMES),
                set_={
                    "requests": PastUseRow.requests + new.excluded.requests,
                    "gpu_seconds": PastUseRow.gpu_seconds + new.excluded.gpu_seconds,
                    "waited": PastUseRow.waited + new.excluded.waited,
                },
            )
        )


_NAMES = ("day", "team", "project", "tier", "kind", "pool", "ended_as")
