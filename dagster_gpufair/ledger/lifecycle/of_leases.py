"""What happens to leases, and through them to their requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Literal

from sqlalchemy import Update, insert, or_, select, update
from sqlalchemy.orm import Session

from dagster_gpufair.ledger import events
from dagster_gpufair.ledger.errors import NotQueued
from dagster_gpufair.ledger.events import EventKind
from dagster_gpufair.ledger.leases import StopCause, recorded
from dagster_gpufair.ledger.lifecycle.of_requests import asked, moving
from dagster_gpufair.ledger.lifecycle.table import LEASES
from dagster_gpufair.ledger.requests import RequestRecord, by_ids
from dagster_gpufair.ledger.statements import changed, insert_into
from dagster_gpufair.ledger.tables import LeaseRow, RequestRow
from dagster_gpufair.scheduling.model import Cards, Class


def grant(
    session: Session,
    request_id: str,
    *,
    pool: str,
    gpus: int,
    nodes: Mapping[str, int],
    cards: Cards | None = None,
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
        moving("grant", [request_id]).values(
            policy_version=policy_version, blocked_reason=None, blocked_message=None
        ),
    )
    if not taken:
        raise NotQueued(
            f"Request {request_id} does not wait for GPUs, so it cannot be granted any."
        )
    request = by_ids(session, [request_id])[request_id]
    values = {
        **_of_the_request(request),
        "state": LEASES["grant"].enters,
        "pool": pool,
        "gpus": gpus,
        "nodes": dict(nodes),
        "cards": {node: [list(card) for card in here] for node, here in (cards or {}).items()},
        "class_": recorded(class_),
        "policy_version": policy_version,
    }
    return _begin_lease(session, "granted", request, values, at, data)


def find(
    session: Session,
    request: RequestRecord,
    pool: str,
    nodes: Mapping[str, int],
    at: float,
    gpus: int | None = None,
) -> int | None:
    """Record GPUs that a run uses without having been granted them.

    ``request`` says whose it is and what it asked for, which is what it uses unless ``gpus`` says
    otherwise; one that waits counts as granted then.

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
        **_of_the_request(request),
        "state": LEASES["find"].enters,
        "pool": pool,
        "gpus": request.gpus if gpus is None else gpus,
        "nodes": dict(nodes),
        "ungated": True,
        "began_at": at,
    }
    return _begin_lease(session, "ungated", request, values, at, asked(request))


def claim(session: Session, lease_id: int, epoch: int, host: str, at: float) -> bool:
    """Take on launching the run of a lease, as the writer of grants with this epoch, before it is done.

    Returns:
        Whether it may be launched now: no writer of this epoch or a later one has taken it on.
    """
    unclaimed = or_(LeaseRow.launch_epoch.is_(None), LeaseRow.launch_epoch < epoch)
    values = {
        "launch_epoch": epoch,
        "launch_host": host,
        "claimed_at": at,
        "launched_at": None,
    }
    return _advance(session, "claim", lease_id, at, values, {"epoch": epoch}, unclaimed)


def settle(session: Session, lease_id: int, at: float) -> bool:
    """The launcher has taken the run; whether its worker ever comes is the launcher's to know."""
    unsettled = LeaseRow.launched_at.is_(None)
    return _advance(session, "settle", lease_id, at, {"launched_at": at}, {}, unsettled)


def begin(session: Session, lease_id: int, began_at: float, at: float) -> bool:
    """The work on the GPUs has begun, at ``began_at``."""
    return _advance(session, "begin", lease_id, at, {"began_at": began_at}, {"began": began_at})


def warn(session: Session, lease_id: int, at: float) -> bool:
    """Note that the owner was told that the lease's time is nearly over.

    Returns:
        Whether this is the first time, so that the notice is given once.
    """
    first = (
        update(LeaseRow)
        .where(
            LeaseRow.id == lease_id, LeaseRow.released_at.is_(None), LeaseRow.warned_at.is_(None)
        )
        .values(warned_at=at)
        .execution_options(synchronize_session=False)
    )
    return bool(changed(session, first))


def notify(session: Session, lease_id: int, until: float, for_: str, rule: str, at: float) -> bool:
    """Give notice: the holder is stopped at ``until``, for a request, by a rule."""
    values = {"notice_until": until, "notice_for": for_, "notice_rule": rule}
    return _advance(
        session, "notify", lease_id, at, values, {"until": until, "for": for_, "rule": rule}
    )


def spare(session: Session, lease_id: int, at: float) -> bool:
    """Take a notice back."""
    values = {"notice_until": None, "notice_for": None, "notice_rule": None}
    return _advance(session, "spare", lease_id, at, values, {})


def renew(session: Session, lease_id: int, at: float) -> bool:
    """A borrowed lease's time begins anew."""
    found = _open_lease(session, lease_id)
    if found is None:
        return False
    session.execute(_if_open(lease_id).values(term_from=at))
    _tell_of(session, "renewed", found, at, {})
    return True


def stop(session: Session, lease_id: int, why: StopCause, at: float) -> bool:
    """Mean to stop the holder, before anything is done about it; its GPUs stay held."""
    values = {"stop_asked_at": at, "stop_why": why}
    return _advance(session, "stop", lease_id, at, values, {"why": why})


def tried_to_stop(session: Session, lease_id: int) -> None:
    """Count one try to stop the holder."""
    session.execute(_if_open(lease_id).values(stop_tries=LeaseRow.stop_tries + 1))


def saw_processes(session: Session, lease_id: int, processes: Mapping[str, int]) -> None:
    """Keep which processes of a lease's run were seen: whoever looks next knows them again."""
    session.execute(_if_open(lease_id).values(processes=dict(processes)))


def linger(session: Session, lease_id: int, over_at: float, why: str, at: float) -> bool:
    """The run is over by Dagster's word, since ``over_at``, and its processes are still there."""
    return _advance(
        session, "linger", lease_id, at, {"over_at": over_at}, {"over": over_at, "why": why}
    )


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
    return _end(session, "release", lease_id, at, reason, {"state": request_state})


def recall(
    session: Session,
    lease_id: int,
    at: float,
    reason: str,
    blocked: tuple[str, str] | None = None,
) -> bool:
    """End a lease whose launch never happened; its request waits again, as if never granted.

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
    data = {"blocked": None if blocked is None else list(blocked)}
    return _end(session, "recall", lease_id, at, reason, again, data)


def preempt(session: Session, lease_id: int, at: float, reason: str, saved_at: float) -> bool:
    """End a lease that was stopped for another: its request waits again, and ranks higher for it.

    Another run has to go on with the work of a whole run (`to_go_on`, `goes_on`); a step waits in its run.

    Args:
        saved_at: since when its work is lost.
    """
    found = _open_lease(session, lease_id)
    if found is None:
        return False
    again = {
        "state": "queued",
        "submitted_at": at,
        "preempted": RequestRow.preempted + 1,
        "continues": None if found.step_key else found.run_id,
        "told_state": None,
        "told_reason": None,
    }
    return _end(session, "preempt", lease_id, at, reason, again, {"saved": saved_at})


def keep(
    session: Session, lease_id: int, until: float | None, by: str, why: str, at: float
) -> bool:
    """Its owner keeps it until then: it is not stopped for others before. None: no longer."""
    found = _open_lease(session, lease_id)
    if found is None:
        return False
    session.execute(_if_open(lease_id).values(kept_until=until))
    _tell_of(session, "kept", found, at, {"until": until, "by": by, "why": why})
    return True


def saved(session: Session, lease_id: int, saved_at: float) -> bool:
    """Its work was saved up to then; never taken back.

    Returns:
        Whether that is news.
    """
    later = or_(LeaseRow.checkpointed_at.is_(None), LeaseRow.checkpointed_at < saved_at)
    found = _open_lease(session, lease_id)
    if found is None or not changed(
        session, _if_open(lease_id).where(later).values(checkpointed_at=saved_at)
    ):
        return False
    _tell_of(session, "saved", found, saved_at, {"saved": saved_at})
    return True


def _of_the_request(request: RequestRecord) -> dict[str, Any]:
    names = (
        "run_id",
        "step_key",
        "attempt",
        "team",
        "project",
        "tier",
        "kind",
        "source",
        "max_duration",
    )
    return {"request_id": request.id, **{name: getattr(request, name) for name in names}}


def _begin_lease(
    session: Session,
    kind: EventKind,
    request: RequestRecord,
    values: Mapping[str, Any],
    at: float,
    data: Mapping[str, Any] | None,
) -> int:
    row = {"ungated": False, "stop_tries": 0, **values, "started_at": at}
    lease_id = session.execute(insert(LeaseRow).values(row)).inserted_primary_key[0]  # type: ignore[attr-defined]
    events.append(
        session,
        kind,
        at,
        run_id=row["run_id"],
        team=row["team"],
        pool=row["pool"],
        data={
            **(data or {}),
            "lease": lease_id,
            "request": request.id,
            "gpus": row["gpus"],
            "nodes": row["nodes"],
            "cards": row.get("cards"),
            "class": row.get("class_"),
            "policy_version": row.get("policy_version"),
        },
    )
    return int(lease_id)


def _end(
    session: Session,
    transition: str,
    lease_id: int,
    at: float,
    reason: str,
    request_values: Mapping[str, Any],
    more: Mapping[str, Any] | None = None,
) -> bool:
    found = _open_lease(session, lease_id)
    if found is None:
        return False
    # Clocks of two machines differ; a lease does not end before it began.
    at = max(at, found.started_at)
    held = at - found.started_at
    data = {"gpus": found.gpus, "held": held, "reason": reason, **(more or {})}
    values = {"released_at": at, "release_reason": reason}
    if not _advance(session, transition, lease_id, at, values, data):
        return False
    finished = at if request_values["state"] != "queued" else None
    session.execute(
        update(RequestRow)
        .where(RequestRow.id == found.request_id)
        .values({"finished_at": finished, **request_values})
        .execution_options(synchronize_session=False)
    )
    return True


def _advance(
    session: Session,
    transition: str,
    lease_id: int,
    at: float,
    values: Mapping[str, Any],
    data: Mapping[str, Any],
    *conditions: Any,
) -> bool:
    """Make a transition of a lease, if it is in a state that this leaves; the one place that does."""
    leaves, enters, kind = LEASES[transition]
    moved = changed(
        session,
        _if_open(lease_id)
        .where(LeaseRow.state.in_(leaves), *conditions)
        .values({"state": enters, **values}),
    )
    if not moved:
        return False
    found = session.execute(
        select(LeaseRow.request_id, LeaseRow.run_id, LeaseRow.team, LeaseRow.pool).where(
            LeaseRow.id == lease_id
        )
    ).one()
    events.append(
        session,
        kind,
        at,
        run_id=found.run_id,
        team=found.team,
        pool=found.pool,
        data={"lease": lease_id, "request": found.request_id, **data},
    )
    return True


def _if_open(lease_id: int) -> Update:
    """A change to a lease that holds only while nobody has released it."""
    return (
        update(LeaseRow)
        .where(LeaseRow.id == lease_id, LeaseRow.released_at.is_(None))
        .execution_options(synchronize_session=False)
    )


def _open_lease(session: Session, lease_id: int) -> Any:
    columns = (
        LeaseRow.id,
        LeaseRow.request_id,
        LeaseRow.run_id,
        LeaseRow.step_key,
        LeaseRow.team,
        LeaseRow.pool,
        LeaseRow.gpus,
        LeaseRow.started_at,
    )
    query = select(*columns).where(LeaseRow.id == lease_id, LeaseRow.released_at.is_(None))
    return session.execute(query).one_or_none()


def _tell_of(
    session: Session, kind: EventKind, lease: Any, at: float, data: Mapping[str, Any]
) -> None:
    events.append(
        session,
        kind,
        at,
        run_id=lease.run_id,
        team=lease.team,
        pool=lease.pool,
        data={"lease": lease.id, "request": lease.request_id, **data},
    )
