"""Launching a run that was granted its GPUs, in a thread of its lane.

It takes the launch on in the ledger before it makes it, and records nothing afterwards: what came of it is
handed back as a `Launch`, and the next pass acts on it if this daemon is still the writer then. If the
process dies in between, the next daemon judges the lease by what is to be seen of the run.
"""

from __future__ import annotations

import time

from dagster import DagsterInstance, DagsterRunStatus

from dagster_gpufair.engine.port import Launch
from dagster_gpufair.engine.writer_turn import Overtaken, WriterTurn
from dagster_gpufair.gate.dagster_internals import (
    ENVIRONMENT_ERRORS,
    IWorkspaceProcessContext,
    launch,
    location_of,
    mark_starting,
    was_surely_not_sent,
)
from dagster_gpufair.gate.queue.environment import first_line
from dagster_gpufair.ledger import lifecycle
from dagster_gpufair.ledger.leases import LeaseRecord

_LAUNCHABLE = (DagsterRunStatus.QUEUED, DagsterRunStatus.STARTING)


def launch_granted(
    instance: DagsterInstance,
    workspace_process_context: IWorkspaceProcessContext,
    turn: WriterTurn,
    epoch: int,
    lease: LeaseRecord,
) -> Launch:
    """Launch the run of a lease once, whoever else may try.

    Args:
        epoch: the writer's turn under which this daemon acts: once that is over it launches nothing.
    """
    try:
        # In one transaction of the ledger's, beside which there is no other: however long this process
        # sleeps in between, no later writer finds the run claimed by nobody and still queued.
        with turn.writing(epoch) as session:
            run = instance.get_run_by_id(lease.run_id)
            # A run that is starting, though nobody has claimed it, was left by one who died between.
            if run is None or run.status not in _LAUNCHABLE:
                return Launch(lease, "not_queued")
            if not lifecycle.claim(session, lease.id, epoch, turn.host, time.time()):
                return Launch(lease, "not_queued")
            mark_starting(instance, run)
        starting = run.with_status(DagsterRunStatus.STARTING)
        workspace = workspace_process_context.create_request_context()
    except Overtaken:
        return Launch(lease, "not_queued")
    except Exception as error:  # noqa: BLE001 -- whatever it was, the run has not been launched
        return Launch(lease, "broken_off", f"{type(error).__name__}: {first_line(error)}")
    location = location_of(run) or ""
    try:
        launch(instance, workspace, starting)
    except ENVIRONMENT_ERRORS as error:
        kind = "unreachable" if was_surely_not_sent(error) else "unsettled"
        return Launch(lease, kind, first_line(error), location)  # type: ignore[arg-type]
    except TimeoutError as error:
        return Launch(lease, "unsettled", first_line(error), location)
    except Exception as error:  # noqa: BLE001 -- whatever a launcher raises, the run has failed
        detail = f"it could not be launched: {type(error).__name__}: {first_line(error)}"
        return Launch(lease, "failed", detail, location)
    return Launch(lease, "launched", location=location)
