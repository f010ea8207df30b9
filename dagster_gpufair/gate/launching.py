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
    mark_starting,
)
from dagster_gpufair.gate.environment import first_line
from dagster_gpufair.gate.run_page import Word, say
from dagster_gpufair.ledger import leases
from dagster_gpufair.ledger.connect import Ledger
from dagster_gpufair.ledger.leases import LeaseRecord


@dataclass(frozen=True)
class Outcome:
    """What came of a launch.

    ``failed``: the launcher raised. ``unreachable``: the run's code location could not be reached.
    ``not_queued``: the run is not (or no longer) in Dagster's queue. ``claimed``: its launch was taken on
    before. ``broken_off``: something broke before the run was handed to its launcher.
    """

    lease: LeaseRecord
    kind: Literal["launched", "failed", "unreachable", "not_queued", "claimed", "broken_off"]
    detail: str = ""
    location: str = ""


NOT_LAUNCHED = ("failed", "unreachable", "broken_off")
"""The kinds of outcome after which a run may be left marked as starting, for `settle` to see to."""


def launch_granted(
    instance: DagsterInstance,
    workspace_process_context: IWorkspaceProcessContext,
    ledger: Ledger,
    lease: LeaseRecord,
    epoch: int,
    word: Word,
) -> Outcome:
    """Launch the run of a lease once, whoever else may try.

    Args:
        epoch: the writer's turn under which this daemon acts; a later writer's claim wins over it.
        word: what the run's page says from now on.
    """
    try:
        say(instance, word)
        # In one transaction of the ledger's, beside which there is no other: however long this process
        # sleeps in between, no later writer finds the run claimed by nobody and still queued.
        with ledger.writing() as session:
            run = instance.get_run_by_id(lease.run_id)
            if run is None or run.status != DagsterRunStatus.QUEUED:
                return Outcome(lease, "not_queued")
            if not leases.claim_launch(session, lease.id, epoch):
                return Outcome(lease, "claimed")
            mark_starting(instance, run)
        starting = instance.get_run_by_id(lease.run_id)
        assert starting is not None, "the run has been deleted"
        workspace = workspace_process_context.create_request_context()
    except Exception as error:  # noqa: BLE001 -- whatever it was, the run has not been launched
        return Outcome(lease, "broken_off", f"{type(error).__name__}: {first_line(error)}")
    location = location_of(run) or ""
    try:
        launch(instance, workspace, starting)
    except ENVIRONMENT_ERRORS as error:
        return Outcome(lease, "unreachable", first_line(error), location)
    except Exception as error:  # noqa: BLE001 -- whatever a launcher raises, the run has failed
        return Outcome(lease, "failed", f"{type(error).__name__}: {first_line(error)}", location)
    return Outcome(lease, "launched", location=location)


def settle(instance: DagsterInstance, outcome: Outcome, retries: int) -> bool:
    """Take a run that was not launched back to Dagster's queue, or fail it; done twice, it is done once.

    A run that has moved on although its launcher raised stays as it is.

    Args:
        retries: how often a run is put back when its code location cannot be reached before it fails;
            0 for no limit.

    Returns:
        Whether the run is in the queue.
    """
    run = instance.get_run_by_id(outcome.lease.run_id)
    if run is None or run.status != DagsterRunStatus.STARTING:
        return run is not None and run.status == DagsterRunStatus.QUEUED
    if outcome.kind == "failed":
        instance.report_run_failed(run, f"The run could not be launched: {outcome.detail}")
        return False
    if outcome.kind == "unreachable":
        if 0 < retries < _times_queued(instance, run):
            instance.report_run_failed(
                run,
                f"The code location could not be reached in {retries + 1} tries "
                f"(max_user_code_failure_retries: {retries}): {outcome.detail}",
            )
            return False
        instance.report_engine_event(
            f"Its code location could not be reached ({outcome.detail}). The GPUs are given back; the "
            "run waits in the queue and is tried again after a pause.",
            run,
        )
    enqueue(instance, run)
    return True


def _times_queued(instance: DagsterInstance, run: DagsterRun) -> int:
    return len(
        instance.get_records_for_run(run.run_id, of_type=DagsterEventType.PIPELINE_ENQUEUED).records
    )
