"""Launching a run that was granted its GPUs, in a thread of its lane.

It records nothing in memory: what came of it is handed back as an `Outcome`, and the next pass acts on
it. If the process dies in between, the next daemon finds the lease with a run that is still queued, and
launches it then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dagster import DagsterEventType, DagsterInstance, DagsterRun, DagsterRunStatus

from dagster_gpufair.gate.dagster_internals import (
    ENVIRONMENT_ERRORS,
    IWorkspaceProcessContext,
    enqueue,
    launch,
    location_of,
)
from dagster_gpufair.ledger import leases
from dagster_gpufair.ledger.connect import Ledger
from dagster_gpufair.ledger.leases import LeaseRecord

CLAIMED = "claimed before"


@dataclass(frozen=True)
class Outcome:
    """What came of a launch.

    ``unreachable``: the run is queued again, its code location could not be reached. ``not_queued``: the
    run is not (or no longer) in Dagster's queue. ``unknown``: it broke in between; to be tried again.
    """

    lease: LeaseRecord
    kind: Literal["launched", "failed", "unreachable", "not_queued", "unknown"]
    detail: str = ""
    location: str = ""


def launch_granted(
    instance: DagsterInstance,
    workspace_process_context: IWorkspaceProcessContext,
    ledger: Ledger,
    lease: LeaseRecord,
    epoch: int,
    retries: int,
) -> Outcome:
    """Launch the run of a lease once, whoever else may try.

    Args:
        epoch: the writer's turn under which this daemon acts; a later writer's claim wins over it.
        retries: how often a run is put back when its code location cannot be reached before it fails;
            0 for no limit.
    """
    run = instance.get_run_by_id(lease.run_id)
    if run is None or run.status != DagsterRunStatus.QUEUED:
        return Outcome(lease, "not_queued", run.status.value if run else "deleted")
    with ledger.writing() as session:
        if not leases.claim_launch(session, lease.id, epoch):
            return Outcome(lease, "not_queued", CLAIMED)
    location = location_of(run) or ""
    try:
        launch(instance, workspace_process_context.create_request_context(), lease.run_id)
    except ENVIRONMENT_ERRORS as error:
        return _unreachable(instance, lease, error, retries, location)
    except Exception as error:  # noqa: BLE001 -- whatever a launcher raises, the run has failed
        return _failed(instance, lease, error)
    return Outcome(lease, "launched", location=location)


def _unreachable(
    instance: DagsterInstance, lease: LeaseRecord, error: Exception, retries: int, location: str
) -> Outcome:
    run = _if_starting(instance, lease.run_id)
    if run is None:
        return Outcome(lease, "launched")
    detail = _first_line(error)
    if 0 < retries <= _launches(instance, lease.run_id) - 1:
        message = (
            f"The code location could not be reached in {retries + 1} tries "
            f"(max_user_code_failure_retries: {retries}): {detail}"
        )
        instance.report_run_failed(run, message)
        return Outcome(lease, "failed", message)
    instance.report_engine_event(
        f"Its code location could not be reached ({detail}). The GPUs are given back; the run waits in "
        "the queue and is tried again after a pause.",
        run,
    )
    enqueue(instance, run)
    return Outcome(lease, "unreachable", detail, location)


def _failed(instance: DagsterInstance, lease: LeaseRecord, error: Exception) -> Outcome:
    run = _if_starting(instance, lease.run_id)
    if run is None:
        return Outcome(lease, "launched")
    message = f"The run could not be launched: {type(error).__name__}: {_first_line(error)}"
    instance.report_run_failed(run, message)
    return Outcome(lease, "failed", message)


def _if_starting(instance: DagsterInstance, run_id: str) -> DagsterRun | None:
    """The run, unless it has moved on although its launcher raised."""
    run = instance.get_run_by_id(run_id)
    waiting = (DagsterRunStatus.QUEUED, DagsterRunStatus.STARTING)
    return run if run is not None and run.status in waiting else None


def _launches(instance: DagsterInstance, run_id: str) -> int:
    return len(
        instance.get_records_for_run(run_id, of_type=DagsterEventType.PIPELINE_ENQUEUED).records
    )


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__
