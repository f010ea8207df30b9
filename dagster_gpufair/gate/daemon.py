"""The queue daemon: Dagster's own, with GPU runs picked by the plan and everything else left to it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from dagster import DagsterInstance, DagsterRun, DagsterRunStatus, RunRecord, RunsFilter

from dagster_gpufair.engine.bounds import Bounds
from dagster_gpufair.engine.collector import collector_at_rest
from dagster_gpufair.engine.lanes import Lanes
from dagster_gpufair.engine.would_stop import Remark, Stops
from dagster_gpufair.engine.writer_turn import Overtaken
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
    open_tag_limits,
)
from dagster_gpufair.gate.environment import Environment
from dagster_gpufair.gate.gpu_queue import GpuQueue
from dagster_gpufair.gate.launching import NOT_LAUNCHED, Outcome, launch_granted, settle
from dagster_gpufair.gate.picking import NOT_IN_QUEUE, Picked, Picker
from dagster_gpufair.gate.run_page import (
    Line,
    Teller,
    Word,
    again_word,
    cancelled_word,
    clock,
    granted_word,
    notice_word,
    released_word,
    say,
    stopped_word,
)
from dagster_gpufair.gate.tags import MARKS, asks_for_gpus
from dagster_gpufair.ledger.connect import LedgerError, ledger_of
from dagster_gpufair.ledger.leases import LeaseRecord
from dagster_gpufair.policy.problems import PolicyError
from dagster_gpufair.scheduling.model import Plan

LAUNCH_PATIENCE = 2.0
"""Seconds: a pass waits for the launches it began, until none has returned for so long; those that take
longer go on beside the next pass."""
SUBMITTED_WITHIN = 10.0
"""Seconds that a submission may take."""
THREADS = 8
"""Launches of a code location at once under ``dequeue_use_threads`` without a number."""


class GpuFairQueueDaemon(QueuedRunCoordinatorDaemon):
    """Dequeues runs for an instance with our coordinator; for any other it is Dagster's own daemon."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._gate: _Gate | None = None
        self._in_progress: Sequence[RunRecord] | None = None
        self._said: str | None = None

    def __exit__(self, *why: Any) -> None:
        # Whoever comes next need not wait for the turn to run out.
        if self._gate is not None:
            with suppress(LedgerError):
                self._gate.queue.give_up_turn()
        super().__exit__(*why)

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
            self._gate = _Gate(instance, coordinator, self._logger)
        gate = self._gate
        if not gate.take_turn(now):
            self._say("Another daemon dequeues the runs of this instance; this one stands by.")
            return
        trouble = gate.queue.rules.trouble
        self._say(trouble if gate.queue.rules.in_force else f"No GPU policy is in force: {trouble}")
        gate.heed_outcomes(now)
        gate.recall(now)
        # Asked first: a run that leaves this list afterwards is among the active.
        pending = gate.pending()
        unfinished = unfinished_ids(instance)
        active = super()._get_in_progress_run_records(instance)
        gate.follow(unfinished, active, now)
        self._in_progress = with_pending(instance, active, pending)
        yield None

        limits = open_tag_limits(instance.get_concurrency_config(), MARKS)
        others = self._pick_others(gate, unfinished, limits, fixed_iteration_time)
        broken = gate.broken(context, now)
        picked = gate.picker.pick(
            instance, gate.queue, limits, self._in_progress, unfinished, others, broken, now
        )
        if picked.others:
            gate.queue.confirm_turn(now)
        begun = gate.start(context, picked, now)
        for run in picked.others:
            launch = partial(self._launch_other, context, run, limits, fixed_iteration_time)
            gate.lanes.put(location_of(run) or "", run.run_id, launch)
            begun.add(run.run_id)
        yield from gate.lanes.wait(begun, LAUNCH_PATIENCE)
        if begun:
            self._logger.info("Launched %d runs, %d with GPUs.", len(begun), len(picked.starts))
        gate.keep_bounds(now)
        gate.tell(picked, now)
        gate.queue.end_turn()

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
        picked = self._get_runs_to_dequeue(
            WithoutRuns(gate.instance, ids, but_from=gate.lanes.closed()),  # type: ignore[arg-type]
            limits,
            fixed_iteration_time=fixed_iteration_time,
        )
        # One that was looked at before its submission was complete may ask for GPUs now.
        gate.queue.book.others -= {run.run_id for run in picked if asks_for_gpus(run.tags)}
        return [run for run in picked if run.run_id in gate.queue.book.others]

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
        self._queue_config = coordinator.get_run_queue_config()
        self._logger = logger
        self._teller = Teller(instance, self.queue.ledger)
        self._environment = Environment()
        self._bounds = Bounds()
        self._stops = Stops()
        self._outcomes: deque[tuple[int, Outcome]] = deque()
        self._unlaunched: set[str] = set()

    def take_turn(self, now: float) -> bool:
        """Become or stay the one writer; what an earlier one left unfinished is taken up."""
        before = self.queue.book
        if not self.queue.take_turn(now):
            return False
        if self.queue.book is not before:
            self._unlaunched = set(self.queue.book.leases)
            self._teller.remember(self.queue.book.queued.values())
        return True

    def heed_outcomes(self, now: float) -> None:
        """Act on what came of the launches since the last pass; each is kept until that is done."""
        while self._outcomes:
            epoch, outcome = self._outcomes[0]
            held = self.queue.book.leases.get(outcome.lease.request_id)
            # What has been in other hands since is judged from the ledger.
            if epoch == self.queue.turn.epoch and held is not None and held.id == outcome.lease.id:
                self._heed(outcome, now)
            self._outcomes.popleft()

    def _heed(self, outcome: Outcome, now: float) -> None:
        lease = outcome.lease
        if outcome.kind == "launched":
            self._environment.reached(outcome.location)
        elif outcome.kind == "claimed":
            self.queue.put_back(
                lease, "environment", "Its launch broke off; it is tried again.", now
            )
        elif outcome.kind in NOT_LAUNCHED:
            self._logger.warning(
                "Run %s was not launched (%s): %s", lease.run_id, outcome.kind, outcome.detail
            )
            if outcome.kind == "unreachable":
                first_pause = self._queue_config.user_code_failure_retry_delay
                self._environment.failed(outcome.location, outcome.detail, now, first_pause)
            if self._settle(outcome):
                self.queue.put_back(lease, "environment", outcome.detail, now)

    def _settle(self, outcome: Outcome) -> bool:
        if outcome.kind not in NOT_LAUNCHED:
            return False
        return settle(self.instance, outcome, self._queue_config.max_user_code_failure_retries)

    def recall(self, now: float) -> None:
        """Give back the GPUs of runs whose lane was closed before it came to them."""
        for run_id in self.lanes.recall():
            lease = self.queue.book.leases.get(run_id)
            if lease is not None:
                self.queue.put_back(lease, "environment", "Launches before it hang.", now)

    def pending(self) -> set[str]:
        """The runs that are being launched, and those that will be because they hold GPUs."""
        return self.lanes.under_way() | (self._unlaunched & self.queue.book.leases.keys())

    def follow(self, unfinished: Sequence[str], active: Sequence[RunRecord], now: float) -> None:
        """Bring the book to what the runs do, and have it said whose GPUs are free again."""
        ended = self.queue.follow(unfinished, active, now)
        for lease, ended_as in ended.leases:
            self._teller.over(released_word(lease, ended_as, now))
        for run_id, ended_as in ended.requests:
            self._teller.over(cancelled_word(run_id, ended_as))

    def broken(self, context: IWorkspaceProcessContext, now: float) -> dict[str, tuple[str, str]]:
        """The requests whose environment is not ready, and why."""
        errors = location_errors(context.create_request_context())
        locations = self._environment.broken(now, errors, self.lanes.closed(), clock)
        if not locations:
            return {}
        return {
            request.id: ("environment", locations[request.location])
            for request in self.queue.book.queued.values()
            if request.location in locations
        }

    def start(self, context: IWorkspaceProcessContext, picked: Picked, now: float) -> set[str]:
        """Grant what was picked, and begin to launch it and what was granted but not launched before."""
        if picked.plan is not None:
            self.queue.note_blocked(picked.blocked, now)
        self.queue.note_reserved(picked.plan.reservations if picked.plan else (), now)
        begun = set()
        if picked.starts and picked.plan is not None and self.queue.rules.in_force is not None:
            policy = self.queue.rules.in_force.policy
            starts = {start.request.id: start for start in picked.starts}
            for lease in self.queue.grant(picked.starts, picked.plan, now):
                word = granted_word(starts[lease.request_id], policy, now)
                self._teller.granted(lease.run_id)
                self._launch(context, lease, location_of(picked.runs[lease.run_id]), word)
                begun.add(lease.run_id)
        for run in self._take_unlaunched():
            lease = self.queue.book.leases[run.run_id]
            self._launch(context, lease, location_of(run), again_word(lease))
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
        word: Word,
    ) -> None:
        epoch = self.queue.turn.epoch
        assert epoch is not None

        def work() -> None:
            outcome = launch_granted(self.instance, context, self.queue.ledger, lease, epoch, word)
            # So as not to wait for the next pass, which does it if this cannot.
            with suppress(Exception):
                self._settle(outcome)
            self._outcomes.append((epoch, outcome))

        self.lanes.put(location or "", lease.run_id, work)

    def keep_bounds(self, now: float) -> None:
        """Tell the runs whose time is nearly over, and stop those that are past it."""
        notice, stop = self._bounds.due(self.queue.book.leases.values(), now)
        for lease in notice:
            say(self.instance, notice_word(lease))
            self.queue.warn(lease, now)
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
        plan = picked.plan or Plan((), ())
        outside = {
            start.request.id: (start.pool, *picked.blocked[start.request.id])
            for start in plan.starts
            if start.request.id in picked.blocked
        }
        for run_id in self.queue.unadmitted:
            outside[run_id] = ("not yet admitted", "environment", "No GPU policy is in force.")
        # Between the two steps of a submission there is nothing to say.
        quiet = {
            run_id
            for run_id, why in picked.blocked.items()
            if why == NOT_IN_QUEUE
            and now - self.queue.book.queued[run_id].submitted_at < SUBMITTED_WITHIN
        }
        remarks = self._remarks(plan, picked, now)
        rules = self.queue.rules
        line = Line(plan, outside, rules.trouble, rules.version, quiet, remarks)
        self._teller.speak(line, now)

    def _remarks(self, plan: Plan, picked: Picked, now: float) -> dict[str, Remark]:
        """What would be stopped for those that wait, where the policy has that."""
        queue, rules = self.queue, self.queue.rules
        if rules.in_force is None or rules.in_force.policy is rules.policy:
            return {}
        policy, state = rules.in_force.policy, queue.state(picked.blocked)
        seen = (rules.version, queue.book.changes, queue.cordoned)
        self._stops.look(policy, state, plan, seen, now)
        return self._stops.remarks(policy, state)
