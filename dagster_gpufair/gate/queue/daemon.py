"""The queue daemon: Dagster's own, with GPU runs picked by the plan and everything else left to it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from threading import Event
from typing import Any

from dagster import DagsterInstance, DagsterRun, RunRecord, RunsFilter

from dagster_gpufair.engine.collector import collector_at_rest
from dagster_gpufair.engine.rules import Rules
from dagster_gpufair.engine.writer_turn import Overtaken
from dagster_gpufair.gate.dagster_internals import (
    UNFINISHED_RUN_STATUSES,
    ConcurrencyConfig,
    DaemonIterator,
    IWorkspaceProcessContext,
    QueuedRunCoordinatorDaemon,
    WithoutRuns,
    error_info,
    is_foreign,
    iterate,
    location_of,
    open_tag_limits,
)
from dagster_gpufair.gate.queue.gate import Gate
from dagster_gpufair.gate.submission.coordinator import GpuFairRunCoordinator
from dagster_gpufair.gate.submission.tags import MARKS, asks_for_gpus
from dagster_gpufair.ledger.connect import LedgerError
from dagster_gpufair.policy.problems import PolicyError

LAUNCH_PATIENCE = 2.0
"""Seconds: a pass waits for the launches it began, until none has returned for so long; those that take
longer go on beside the next pass."""


class GpuFairQueueDaemon(QueuedRunCoordinatorDaemon):
    """Dequeues runs for an instance with our coordinator; for any other it is Dagster's own daemon."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._gate: Gate | None = None
        self._in_progress: Sequence[RunRecord] | None = None
        self._said: str | None = None

    def __exit__(self, *why: Any) -> None:
        # Whoever comes next need not wait for the turn to run out.
        if self._gate is not None:
            self._gate.close()
        super().__exit__(*why)

    def core_loop(
        self, workspace_process_context: IWorkspaceProcessContext, shutdown_event: Event
    ) -> DaemonIterator:
        """Dagster's own loop, by a clock that nobody sets: its own waits for hours after one was set back."""
        return iterate(self, workspace_process_context, shutdown_event, self._pause)

    def _pause(self) -> float:
        interval = float(self.interval_seconds)
        return interval if self._gate is None else self._gate.pause(interval)

    def run_iteration(
        self,
        workspace_process_context: IWorkspaceProcessContext,
        fixed_iteration_time: float | None = None,
    ) -> DaemonIterator:
        coordinator = workspace_process_context.instance.run_coordinator
        if not isinstance(coordinator, GpuFairRunCoordinator):
            yield from super().run_iteration(workspace_process_context, fixed_iteration_time)
            return
        try:
            yield from self._pass(workspace_process_context, coordinator, fixed_iteration_time)
        except Overtaken as overtaken:
            self._logger.warning("This pass ends: %s.", overtaken)
        except (LedgerError, PolicyError) as error:
            self._say(f"No GPU run is started: {error}")
            yield error_info()
            # Runs without GPUs go on; the closed tag limit keeps the others where they are.
            self._in_progress = None
            yield from super().run_iteration(workspace_process_context, fixed_iteration_time)
        finally:
            self._in_progress = None

    def _pass(
        self,
        context: IWorkspaceProcessContext,
        coordinator: GpuFairRunCoordinator,
        fixed_iteration_time: float | None,
    ) -> DaemonIterator:
        instance = context.instance
        now = fixed_iteration_time or time.time()
        if self._gate is None or self._gate.instance is not instance:
            self._gate = Gate(instance, coordinator, self._logger)
        gate = self._gate
        if not gate.take_turn(now, clock_is_real=fixed_iteration_time is None):
            self._say("Another daemon dequeues the runs of this instance; this one stands by.")
            return
        engine = gate.engine
        self._say(_of_the_policy(engine.rules))
        gate.heed_launches(now)
        gate.recall(now)
        # Asked first: a run that leaves this list afterwards is among the active.
        pending = gate.pending()
        unfinished = unfinished_ids(instance)
        active = super()._get_in_progress_run_records(instance)
        gate.follow(context, unfinished, active, now)
        self._in_progress = with_pending(instance, active, pending)
        yield None

        limits = open_tag_limits(instance.get_concurrency_config(), MARKS)
        others = self._pick_others(gate, unfinished, limits, fixed_iteration_time)
        broken = gate.broken(context, now)
        workspace = context.create_request_context()
        picked = gate.picker.pick(
            instance,
            engine,
            limits,
            self._in_progress,
            unfinished,
            others,
            broken,
            partial(is_foreign, workspace),
            now,
        )
        if picked.others:
            engine.confirm_turn()
        begun = gate.carry_out(context, picked, now)
        for run in picked.others:
            launch = partial(self._launch_other, context, run, limits, fixed_iteration_time)
            gate.launch_threads.put(location_of(run) or "", run.run_id, launch)
            begun.add(run.run_id)
        yield from gate.launch_threads.wait(begun, LAUNCH_PATIENCE)
        gate.heed_launches(now)
        if begun:
            runs = "1 run" if len(begun) == 1 else f"{len(begun)} runs"
            self._logger.info("%s launched, %d with GPUs.", runs, len(picked.starts))
        gate.keep_bounds(now)
        gate.tell(picked, now)
        engine.prune(now)
        engine.end_turn()

    # Dagster's own picking asks for these a second time in the same pass.
    def _get_in_progress_run_records(self, instance: DagsterInstance) -> Sequence[RunRecord]:
        if self._in_progress is None:
            return super()._get_in_progress_run_records(instance)
        return self._in_progress

    def _pick_others(
        self,
        gate: Gate,
        unfinished: Sequence[str],
        limits: ConcurrencyConfig,
        fixed_iteration_time: float | None,
    ) -> list[DagsterRun]:
        """The runs without GPUs that Dagster's own rules start now."""
        busy = gate.launch_threads.under_way()
        ids = [id_ for id_ in unfinished if id_ in gate.engine.book.others and id_ not in busy]
        picked = self._get_runs_to_dequeue(
            WithoutRuns(gate.instance, ids, but_from=gate.launch_threads.closed()),  # type: ignore[arg-type]
            limits,
            fixed_iteration_time=fixed_iteration_time,
        )
        # One that was looked at before its submission was complete may ask for GPUs now.
        gate.engine.book.others -= {run.run_id for run in picked if asks_for_gpus(run.tags)}
        return [run for run in picked if run.run_id in gate.engine.book.others]

    def _launch_other(
        self,
        context: IWorkspaceProcessContext,
        run: DagsterRun,
        limits: ConcurrencyConfig,
        fixed_iteration_time: float | None,
    ) -> None:
        try:
            workspace = context.create_request_context()
            self._dequeue_run(context.instance, workspace, run, limits, fixed_iteration_time)
        except Exception:
            self._logger.exception("Run %s could not be dequeued", run.run_id)

    def _say(self, message: str | None) -> None:
        """Log what is not as it should be, once until it changes."""
        if message is not None and message != self._said:
            self._logger.error("%s", message)
        self._said = message


def _of_the_policy(rules: Rules) -> str | None:
    """What is wrong with the policy file, and which rules are followed meanwhile; None if nothing is."""
    if rules.in_force is None:
        return f"No GPU policy is in force: {rules.trouble}"
    if rules.trouble is None:
        return None
    return f"{rules.trouble}. Policy v{rules.version} stays in force."


def unfinished_ids(instance: DagsterInstance) -> Sequence[str]:
    """The ids of all unfinished runs, oldest first."""
    with collector_at_rest():
        return instance.get_run_ids(RunsFilter(statuses=UNFINISHED_RUN_STATUSES))[::-1]


def with_pending(
    instance: DagsterInstance, active: Sequence[RunRecord], pending: set[str]
) -> Sequence[RunRecord]:
    """The runs that hold a worker, and those that are about to, so that they count for its limits."""
    ids = pending - {found.dagster_run.run_id for found in active}
    if not ids:
        return active
    about_to = RunsFilter(run_ids=list(ids), statuses=UNFINISHED_RUN_STATUSES)
    return [*active, *instance.get_run_records(about_to)]
