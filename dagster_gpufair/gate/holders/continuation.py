"""A run that is stopped for others, and the run that goes on with its work.

To all else in Dagster it should be as if the first had only taken longer. So before it is stopped, its
backfill is made to forget it, since that would count it as failed, and its retries are switched off, since
they would go on with it too; a run that stands for the next one keeps the backfill from being over in
between. The run that goes on has all of that again, and starts from the step that was stopped.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from time import time

from dagster import DagsterInstance, DagsterRun, DagsterRunStatus, MetadataValue, RunsFilter
from sqlalchemy.orm import Session

from dagster_gpufair.engine.port import CannotGoOn
from dagster_gpufair.gate.dagster_internals import (
    BACKFILL_ID_TAG,
    BACKFILL_TAGS,
    MAX_RETRIES_TAG,
    WILL_RETRY_TAG,
    BaseWorkspaceRequestContext,
    NothingToRetry,
    downstream_of,
    from_failure,
    job_of,
    report_engine_event,
)
from dagster_gpufair.gate.submission.tags import CONTINUES, HIDDEN
from dagster_gpufair.gate.tag_writes import write_tags
from dagster_gpufair.ledger import lifecycle
from dagster_gpufair.ledger.leases import PREEMPTION, LeaseRecord
from dagster_gpufair.ledger.requests import RequestRecord

_MOST_ASSETS = 8
"""So many of the assets that wait are named."""
_HIDES = (*BACKFILL_TAGS, MAX_RETRIES_TAG)
_STOPPED = (DagsterRunStatus.CANCELED, DagsterRunStatus.FAILURE)
_STANDS_IN = uuid.UUID("6f2d5b3e-4f0c-4d1e-9a52-2f6c1c1d7a10")


def hide(instance: DagsterInstance, run_id: str) -> bool:
    """Make a run that is about to be stopped none of its backfill's, and one that is not retried.

    Returns:
        Whether it goes on still: one that has ended meanwhile is left as it is.
    """
    run = instance.get_run_by_id(run_id)
    if run is None or run.is_finished:
        return False
    if _before(run) is None:
        backfill = run.tags.get(BACKFILL_ID_TAG)
        was = {tag: run.tags[tag] for tag in _HIDES if tag in run.tags}
        hidden = {HIDDEN: json.dumps(was), MAX_RETRIES_TAG: "0"}
        if backfill is not None:
            _stand_in(instance, run, backfill)
            hidden[BACKFILL_ID_TAG] = f"{backfill} (stopped)"
        write_tags(instance, run_id, hidden)
    now = instance.get_run_by_id(run_id)
    if now is not None and now.is_finished:
        show(instance, now)
        return False
    return True


def show(instance: DagsterInstance, run: DagsterRun) -> None:
    """Undo `hide`: the run has ended by itself, or nobody goes on with it."""
    was = _before(run)
    if was is None:
        return
    tags = {MAX_RETRIES_TAG: str(instance.run_retries_max_retries), **was, HIDDEN: ""}
    write_tags(instance, run.run_id, tags)
    _end_stand_in(instance, run)


def was_stopped(run: DagsterRun, lease: LeaseRecord) -> bool:
    """Whether a run that is over was ended by our stop, so that its work is to go on.

    Once it was told to stop, it makes no difference who else told it so.
    """
    if lease.stop_why != PREEMPTION or not lease.stop_tries or run.status not in _STOPPED:
        return False
    # It failed just before its retries were switched off: Dagster goes on with it.
    return run.tags.get(WILL_RETRY_TAG, "").lower() != "true"


def go_on(
    instance: DagsterInstance,
    workspace: BaseWorkspaceRequestContext,
    request: RequestRecord,
    write: Callable[[], AbstractContextManager[Session]],
) -> None:
    """Have another run wait for GPUs that goes on with what was stopped; each step can be done again.

    Raises:
        CannotGoOn: if there is nothing to go on with.
    """
    assert request.continues is not None
    stopped = instance.get_run_by_id(request.continues)
    if stopped is None:
        raise CannotGoOn("it was deleted")
    run = _known(instance, stopped, request) or _create(instance, workspace, stopped, request)
    # Known before it is submitted, so that it is nobody's new request.
    with write() as session:
        lifecycle.to_go_on(session, request, run.run_id, time())
    if run.status == DagsterRunStatus.NOT_STARTED:
        instance.submit_run(run.run_id, workspace)
    _end_stand_in(instance, stopped)
    with write() as session:
        lifecycle.goes_on(session, request.id)


def _known(
    instance: DagsterInstance, stopped: DagsterRun, request: RequestRecord
) -> DagsterRun | None:
    """The run that was made to go on, by whoever was to do this before."""
    found = instance.get_runs(RunsFilter(tags={CONTINUES: _mark(request)}))
    return next((run for run in found if run.parent_run_id == stopped.run_id), None)


def _create(
    instance: DagsterInstance,
    workspace: BaseWorkspaceRequestContext,
    stopped: DagsterRun,
    request: RequestRecord,
) -> DagsterRun:
    try:
        location, job = job_of(workspace, stopped)
    except LookupError as error:
        raise CannotGoOn(str(error)) from error
    tags = {CONTINUES: _mark(request), **_as_before(instance, stopped)}
    try:
        run = from_failure(instance, workspace, location, job, stopped, tags)
    except NothingToRetry as error:
        raise CannotGoOn("all of its steps were done") from error
    _tell(instance, stopped, run, downstream_of(workspace, stopped))
    return run


def _tell(
    instance: DagsterInstance, stopped: DagsterRun, run: DagsterRun, downstream: Sequence[str]
) -> None:
    """Have each of the two say on its page which is the other."""
    steps = ", ".join(run.step_keys_to_execute or ()) or "all steps"
    assets = ", ".join(downstream[:_MOST_ASSETS])
    more = f" and {len(downstream) - _MOST_ASSETS} more" if len(downstream) > _MOST_ASSETS else ""
    wait = f" Assets that depend on it wait meanwhile: {assets}{more}." if downstream else ""
    report_engine_event(
        instance,
        stopped,
        f"Run {run.run_id[:8]} goes on with the work of this run ({steps}).{wait}",
        {"goes on in": MetadataValue.dagster_run(run.run_id)},
    )
    report_engine_event(
        instance,
        run,
        f"This run goes on with the work of {stopped.run_id[:8]}, which was stopped for other work "
        f"({steps}). What that had done before is not done again.",
        {"goes on with": MetadataValue.dagster_run(stopped.run_id)},
    )


def _as_before(instance: DagsterInstance, stopped: DagsterRun) -> dict[str, str]:
    """What was hidden, and one retry more: Dagster counts all runs of a group as retries."""
    was = _before(stopped)
    if was is None:
        # What was hidden has been overwritten, by a worker that reported just then.
        was = {tag: stopped.tags[tag] for tag in _HIDES if tag in stopped.tags}
    tags = dict(was)
    most = tags.get(MAX_RETRIES_TAG, str(instance.run_retries_max_retries))
    more = str(int(most) + 1) if most.isdecimal() and int(most) > 0 else most
    return {**tags, MAX_RETRIES_TAG: more, HIDDEN: ""}


def _before(run: DagsterRun) -> Mapping[str, str] | None:
    """The tags that were hidden; None if nothing is hidden now."""
    hidden = run.tags.get(HIDDEN)
    return json.loads(hidden) if hidden else None


def _mark(request: RequestRecord) -> str:
    """Differs each time that a request is stopped."""
    return f"{request.id}/{request.preempted}"


def _stand_in(instance: DagsterInstance, run: DagsterRun, backfill: str) -> None:
    """Put a run into the backfill that never starts, so that something of it is unfinished."""
    id_ = _stand_in_id(run)
    if not instance.has_run(id_):
        tags = {BACKFILL_ID_TAG: backfill}
        instance.add_run(DagsterRun(run.job_name, run_id=id_, tags=tags))


def _end_stand_in(instance: DagsterInstance, run: DagsterRun) -> None:
    id_ = _stand_in_id(run)
    if instance.has_run(id_):
        instance.delete_run(id_)


def _stand_in_id(run: DagsterRun) -> str:
    return str(uuid.uuid5(_STANDS_IN, run.run_id))
