"""The queue daemon: Dagster's own, with GPU runs picked by the plan and everything else left to it."""

from __future__ import annotations

import queue
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from dagster import DagsterInstance, DagsterRun, DagsterRunStatus, RunRecord, RunsFilter

from dagster_gpufair.gate.bounds import Bounds
from dagster_gpufair.gate.coordinator import GpuFairRunCoordinator
from dagster_gpufair.gate.dagster_internals import (
    UNFINISHED_RUN_STATUSES,
    ConcurrencyConfig,
    DaemonIterator,
    IWorkspaceProcessContext,
    QueuedRunCoordinatorDaemon,
    WithoutRuns,
    error_info,
    location_errors,
    location_of,
    open_tag_limit,
)
from dagster_gpufair.gate.environment import Environment
from dagster_gpufair.gate.gpu_queue import GpuQueue, TurnLost
from dagster_gpufair.gate.lanes import Lanes
from dagster_gpufair.gate.launching import CLAIMED, Outcome, launch_granted
from dagster_gpufair.gate.picking import Picked, Picker
from dagster_gpufair.gate.tags import STATE
from dagster_gpufair.gate.telling import (
    Teller,
    Word,
    clock,
    granted_word,
    notice_word,
    released_word,
    say,
    stopped_word,
    waiting_words,
)
from dagster_gpufair.ledger.connect import LedgerError, ledger_of
from dagster_gpufair.ledger.leases import LeaseRecord
from dagster_gpufair.policy.problems import PolicyError

LAUNCHES_AWAITED = 5.0
"""Seconds a pass waits for the launches it began; those that take longer go on beside the next."""
NOT_QUEUED_AGAIN_AFTER = 30.0
"""Seconds after which a granted run that was not in Dagster's queue is looked at again."""
THREADS = 8
"""Launches of a code location at once under ``dequeue_use_threads`` without a number."""


class GpuFairQueueDaemon(QueuedRunCoordinatorDaemon):
    """Dequeues runs for an instance with our coordinator; for any other it is Dagster's own daemon."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._gate: _Gate | None = None
        self._in_progress: Sequence[RunRecord] | None = None
        self._said: str | None = None

    def run_iteration(  # type: ignore[override]
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
        except TurnLost as lost:
            self._logger.warning("This pass ends: %s.", lost)
        except (LedgerError, PolicyError) as error:
            self._say(f"No GPU run is started: {error}")
            yield error_info()
            # Runs without GPUs go on; the closed tag limit keeps the others where they are.
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
            self._gate = _Gate(instance, coordinator, self._logger)
        gate = self._gate
        if not gate.take_turn(now):
            self._say("Another daemon dequeues the runs of this instance; this one stands by.")
            return
        self._say(gate.queue.trouble)
        gate.heed_outcomes(now)
        unfinished = instance.get_run_ids(RunsFilter(statuses=UNFINISHED_RUN_STATUSES))[::-1]
        self._in_progress = super()._get_in_progress_run_records(instance)
        gate.follow(unfinished, self._in_progress, now)
        yield None

        limits = open_tag_limit(instance.get_concurrency_config(), STATE)
        others = self._pick_others(gate, unfinished, limits, fixed_iteration_time)
        broken = gate.broken(context, now)
        picked = gate.picker.pick(
            instance, gate.queue, limits, self._in_progress, unfinished, others, broken, now
        )
        begun = gate.start(context, picked, now)
        for run in picked.others:
            launch = partial(self._launch_other, context, run, limits, fixed_iteration_time)
            gate.lanes.put(location_of(run) or "", run.run_id, launch)
            begun.add(run.run_id)
        yield from gate.lanes.wait(begun, LAUNCHES_AWAITED)
        if begun:
            self._logger.info("Launched %d runs, %d with GPUs.", len(begun), len(picked.starts))
        gate.keep_bounds(now)
        gate.tell(picked, now)

    # Dagster's own picking asks for these a second time in the same pass.
    def _get_in_progress_run_records(self, instance: DagsterInstance) -> Sequence[RunRecord]:
        if self._in_progress is None:
            return super()._get_in_progress_run_records(instance)
        return self._in_progress

    def _pick_others(
        self,
        gate: _Gate,
        unfinished: Sequence[str],
        limits: ConcurrencyConfig,
        fixed_iteration_time: float | None,
    ) -> list[DagsterRun]:
        """The runs without GPUs that Dagster's own rules start now."""
        busy = gate.lanes.under_way()
        ids = [id_ for id_ in unfinished if id_ in gate.queue.book.others and id_ not in busy]
        return self._get_runs_to_dequeue(
            WithoutRuns(gate.instance, ids),  # type: ignore[arg-type]
            limits,
            fixed_iteration_time=fixed_iteration_time,
        )

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


class _Gate:
    """What the daemon keeps between passes for the GPU runs of one instance."""

    def __init__(self, instance: DagsterInstance, coordinator: GpuFairRunCoordinator, logger: Any):
        self.instance = instance
        self.queue = GpuQueue(instance, ledger_of(instance), coordinator.policy_watch, logger)
        width = (
            (coordinator.dequeue_num_workers or THREADS) if coordinator.dequeue_use_threads else 1
        )
        self.lanes = Lanes(width)
        self.picker = Picker()
        self._coordinator = coordinator
        self._logger = logger
        self._teller = Teller(instance, self.queue.ledger)
        self._environment = Environment()
        self._bounds = Bounds()
        self._outcomes: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
        self._unlaunched: set[str] = set()
        self._aside: dict[str, float] = {}

    def take_turn(self, now: float) -> bool:
        """Become or stay the one writer; what an earlier one left unfinished is taken up."""
        before = self.queue.epoch
        if not self.queue.take_turn(now):
            return False
        if self.queue.epoch != before:
            self._unlaunched = set(self.queue.book.leases)
            self._teller.remember(self.queue.book.queued.values())
        return True

    def heed_outcomes(self, now: float) -> None:
        """Act on what came of the launches since the last pass."""
        while not self._outcomes.empty():
            outcome = self._outcomes.get()
            lease = outcome.lease
            if lease.request_id not in self.queue.book.leases:
                continue
            if outcome.kind == "launched":
                self._environment.reached(outcome.location)
            elif outcome.kind == "unknown":
                self._logger.error("Launching run %s broke off: %s", lease.run_id, outcome.detail)
                self._unlaunched.add(lease.request_id)
            elif outcome.kind == "unreachable":
                first_pause = self._coordinator.get_run_queue_config().user_code_failure_retry_delay
                self._environment.failed(outcome.location, outcome.detail, now, first_pause)
                self.queue.put_back(lease, "environment", outcome.detail, now)
            elif outcome.detail == CLAIMED:
                self.queue.put_back(lease, "environment", "its launch broke off; tried again", now)
            elif outcome.detail == DagsterRunStatus.NOT_STARTED.value:
                self._aside[lease.request_id] = now + NOT_QUEUED_AGAIN_AFTER
                self.queue.put_back(lease, "environment", "it is not in Dagster's queue", now)

    def follow(self, unfinished: Sequence[str], active: Sequence[RunRecord], now: float) -> None:
        """Bring the book to what the runs do, and have it said whose GPUs are free again."""
        for lease, ended_as in self.queue.follow(unfinished, active, now):
            self._teller.released(released_word(lease, ended_as, now))

    def broken(self, context: IWorkspaceProcessContext, now: float) -> dict[str, tuple[str, str]]:
        """The requests whose environment is not ready, and why."""
        self._aside = {id_: until for id_, until in self._aside.items() if until > now}
        why = dict.fromkeys(
            self._aside, ("environment", "It was submitted, but is not in Dagster's queue yet.")
        )
        errors = location_errors(context.create_request_context())
        locations = self._environment.broken(now, errors, self.lanes.closed(), clock)
        if locations:
            for request in self.queue.book.queued.values():
                if request.location in locations:
                    why[request.id] = ("environment", locations[request.location])
        return why

    def start(self, context: IWorkspaceProcessContext, picked: Picked, now: float) -> set[str]:
        """Grant what was picked, and begin to launch it and what was granted but not launched before."""
        if picked.plan is not None:
            self.queue.note_blocked(picked.blocked, now)
        begun = set()
        if picked.starts and picked.plan is not None and self.queue.in_force is not None:
            policy = self.queue.in_force.policy
            starts = {start.request.id: start for start in picked.starts}
            for lease in self.queue.grant(picked.starts, picked.plan, now):
                word = granted_word(starts[lease.request_id], policy, now)
                self._launch(context, lease, location_of(picked.runs[lease.run_id]), word)
                begun.add(lease.run_id)
        for run in self._take_unlaunched():
            self._launch(context, self.queue.book.leases[run.run_id], location_of(run), None)
            begun.add(run.run_id)
        return begun

    def _take_unlaunched(self) -> Sequence[DagsterRun]:
        """The runs that hold GPUs and are still in Dagster's queue, though nobody launches them."""
        busy = self.lanes.under_way()
        ids = [id_ for id_ in self._unlaunched if id_ in self.queue.book.leases and id_ not in busy]
        self._unlaunched.clear()
        if not ids:
            return ()
        return self.instance.get_runs(RunsFilter(run_ids=ids, statuses=[DagsterRunStatus.QUEUED]))

    def _launch(
        self,
        context: IWorkspaceProcessContext,
        lease: LeaseRecord,
        location: str | None,
        word: Word | None,
    ) -> None:
        retries = self._coordinator.get_run_queue_config().max_user_code_failure_retries
        epoch = self.queue.epoch
        assert epoch is not None

        def work() -> None:
            try:
                if word is not None:
                    say(self.instance, word)
                outcome = launch_granted(
                    self.instance, context, self.queue.ledger, lease, epoch, retries
                )
            except Exception as error:  # noqa: BLE001 -- the next pass logs it and tries again
                outcome = Outcome(lease, "unknown", f"{type(error).__name__}: {error}")
            self._outcomes.put(outcome)

        self.lanes.put(location or "", lease.run_id, work)

    def keep_bounds(self, now: float) -> None:
        """Tell the runs whose time is nearly over, and stop those that are past it."""
        notice, stop = self._bounds.due(self.queue.book.leases.values(), now)
        for lease in notice:
            if self.queue.warn(lease, now):
                say(self.instance, notice_word(lease))
        for lease in stop:
            say(self.instance, stopped_word(lease))
            cancel = partial(self._cancel, lease.run_id)
            self.lanes.put(f"stop {lease.run_id}", lease.run_id, cancel)

    def _cancel(self, run_id: str) -> None:
        try:
            self._coordinator.cancel_run(run_id)
        except Exception:
            self._logger.exception("Run %s is past its time and could not be stopped", run_id)

    def tell(self, picked: Picked, now: float) -> None:
        """Say on the runs' pages what has changed."""
        if picked.plan is not None:
            words = waiting_words(picked.plan, picked.blocked, self.queue.trouble)
            self._teller.speak(words, now)
