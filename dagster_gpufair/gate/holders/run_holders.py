"""Runs of Dagster as what holds GPUs: the engine's port for them."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager

from dagster import DagsterInstance, DagsterRun, DagsterRunStatus, RunRecord
from sqlalchemy.orm import Session

from dagster_gpufair.engine.port import Heard, Sight
from dagster_gpufair.gate.channels.channels import Channels
from dagster_gpufair.gate.channels.steps import may_stop_now
from dagster_gpufair.gate.channels.words import Lease, Notice
from dagster_gpufair.gate.dagster_internals import IWorkspaceProcessContext, enqueue
from dagster_gpufair.gate.holders import continuation
from dagster_gpufair.gate.holders.runs import records_of
from dagster_gpufair.gate.holders.worker_health import WorkerHealth
from dagster_gpufair.gate.holders.workers import Workers
from dagster_gpufair.gate.submission.coordinator import GpuFairRunCoordinator
from dagster_gpufair.ledger.connect import ledger_of
from dagster_gpufair.ledger.leases import PREEMPTION, LeaseRecord
from dagster_gpufair.ledger.requests import RequestRecord


class RunHolders:
    """Looks at runs once a pass: `see` takes what the pass has read of them anyway."""

    def __init__(
        self,
        instance: DagsterInstance,
        coordinator: GpuFairRunCoordinator,
        host: str,
        channels: Channels,
        quiet: Callable[[str], AbstractContextManager[None]],
        logger: logging.Logger,
    ):
        self._instance = instance
        self._coordinator = coordinator
        self.channels = channels
        self._quiet = quiet
        """Keeps everything else in this process from writing a run."""
        self._told: set[str] = set()
        """The runs whose channels are kept."""
        self._workers = Workers(instance, ledger_of(instance), host)
        self._health = WorkerHealth(instance, logger)
        self._context: IWorkspaceProcessContext | None = None
        self._unfinished: set[str] = set()
        self._active: dict[str, RunRecord] = {}
        self._last_seen: dict[str, DagsterRun] = {}
        """Runs that hold GPUs, as they were when they went on: one that is deleted has no record."""

    def see(
        self,
        context: IWorkspaceProcessContext,
        unfinished: set[str],
        active: Sequence[RunRecord],
    ) -> None:
        """What the pass knows: the workspace, the ids of all unfinished runs, the runs that hold a worker."""
        self._context = context
        self._unfinished = unfinished
        self._active = {record.dagster_run.run_id: record for record in active}

    def look(self, held: Collection[LeaseRecord]) -> Mapping[str, Sight]:
        run_ids = {lease.run_id for lease in held}
        self._workers.forget_but(run_ids)
        self._health.forget_but(run_ids)
        self._last_seen = {id_: run for id_, run in self._last_seen.items() if id_ in run_ids}
        for run_id in run_ids & self._active.keys():
            self._last_seen[run_id] = self._active[run_id].dagster_run
        over = [lease for lease in held if lease.run_id not in self._unfinished]
        found = {
            record.dagster_run.run_id: record
            for record in records_of(self._instance, [lease.run_id for lease in over])
        }
        sights = {lease.request_id: self._over(lease, found.get(lease.run_id)) for lease in over}
        for lease in held:
            if lease.run_id in self._unfinished:
                sights[lease.request_id] = self._going_on(lease)
        self._confirm_queued(held, sights)
        return {id_: sight for id_, sight in sights.items() if sight is not None}

    def _confirm_queued(
        self, held: Collection[LeaseRecord], sights: dict[str, Sight | None]
    ) -> None:
        """A run that has ended between the two looks of the pass seems to wait: only another look tells."""
        doubtful = {
            lease.run_id: lease.request_id
            for lease in held
            if lease.state != "granted"
            and (sight := sights.get(lease.request_id)) is not None
            and sight.doing == "queued"
        }
        waiting = {
            record.dagster_run.run_id
            for record in records_of(self._instance, doubtful)
            if record.dagster_run.status == DagsterRunStatus.QUEUED
        }
        for run_id in doubtful.keys() - waiting:
            sights[doubtful[run_id]] = None

    def _over(self, lease: LeaseRecord, record: RunRecord | None) -> Sight | None:
        run = record.dagster_run if record else self._last_seen.get(lease.run_id)
        if record is not None and not record.dagster_run.is_finished:
            return None  # it was queued again between two looks: the next pass sees it
        alive = self._workers.alive(lease, run, is_over=True)
        if alive is None and run is not None and self._health.can_tell:
            if not self._health.is_known(run):
                return None
            alive = self._health.lives_on(run)
        if record is None:
            return Sight("over", None, "deleted", alive)
        run = record.dagster_run
        goes_on = continuation.was_stopped(run, lease)
        if not goes_on:
            continuation.show(self._instance, run)
        return Sight("over", record.end_time, run.status.value.lower(), alive, goes_on)

    def _going_on(self, lease: LeaseRecord) -> Sight | None:
        record = self._active.get(lease.run_id)
        if record is None:
            return Sight("queued")
        run = record.dagster_run
        alive = self._workers.alive(lease, run, is_over=False)
        is_starting = run.status == DagsterRunStatus.STARTING or record.start_time is None
        # Before the launcher has taken it, it cannot know of it.
        if alive is None and self._health.can_tell and lease.launched_at is not None:
            alive = self._health.alive(run)
            if alive is None and is_starting:
                return None  # an image is being pulled, a cluster is full: the launcher will tell
        if is_starting:
            return Sight("starting", alive=alive)
        return Sight("running", record.start_time, alive=alive)

    def how_ended(self, waited: Collection[RequestRecord]) -> Mapping[str, str]:
        runs = {
            record.dagster_run.run_id: record.dagster_run
            for record in records_of(self._instance, [request.run_id for request in waited])
        }
        ended = {}
        for request in waited:
            run = runs.get(request.run_id)
            if run is None:
                ended[request.id] = "deleted"
            elif run.is_finished:
                ended[request.id] = run.status.value.lower()
        return ended

    def requeue(self, lease: LeaseRecord) -> bool:
        run = self._instance.get_run_by_id(lease.run_id)
        if run is None or run.status not in (DagsterRunStatus.QUEUED, DagsterRunStatus.STARTING):
            return False
        if run.status == DagsterRunStatus.STARTING:
            enqueue(self._instance, run)
        return True

    def give_up(self, lease: LeaseRecord, why: str, *, if_not_begun: bool = False) -> None:
        run = self._instance.get_run_by_id(lease.run_id)
        if run is None or run.is_finished:
            return
        if if_not_begun and run.status == DagsterRunStatus.STARTED:
            return
        if run.status == DagsterRunStatus.CANCELING:
            self._instance.report_run_canceled(run, f"The run is over: {why}.")
        else:
            self._instance.report_run_failed(run, f"The run has failed: {why}.")

    def stop(self, lease: LeaseRecord) -> None:
        if lease.stop_why == PREEMPTION:
            with self._quiet(lease.run_id):
                if not continuation.hide(self._instance, lease.run_id):
                    return
        self._coordinator.cancel_run(lease.run_id)

    def heard(self, held: Collection[LeaseRecord]) -> Mapping[str, Heard]:
        said = self.channels.heard([lease.run_id for lease in held])
        return {
            lease.request_id: Heard(
                saved_at=said[lease.run_id].checkpointed_at,
                may_stop=lease.state == "notice"
                and may_stop_now(self._instance, lease.run_id, said[lease.run_id]),
            )
            for lease in held
            if lease.run_id in said
        }

    def tell(self, held: Collection[LeaseRecord], asked_by: Callable[[LeaseRecord], str]) -> None:
        """Have the code of runs find their leases and their notices; costs nothing where nothing is new.

        Args:
            asked_by: for what a lease is under notice, in words.
        """
        runs = {lease.run_id for lease in held if not lease.ungated}
        for run_id in self._told - runs:
            self.channels.close(run_id)
        self._told = runs
        for lease in held:
            if lease.run_id not in runs or lease.state == "ending":
                continue
            notice = None
            if lease.notice_until is not None and lease.state in ("notice", "stopping"):
                rule = lease.notice_rule or ""
                notice = Notice(lease.notice_until, rule, asked_by(lease))
            of = Lease(lease.request_id, lease.pool, lease.gpus, lease.started_at)
            self.channels.open(lease.run_id, of, notice)

    def signal(self, lease: LeaseRecord, name: str) -> None:
        """Send a signal to the processes of a run, where they are on this machine."""
        self._workers.signal(lease, signal.Signals[name])

    def go_on(
        self, request: RequestRecord, write: Callable[[], AbstractContextManager[Session]]
    ) -> None:
        assert self._context is not None, "a pass has begun"
        workspace = self._context.create_request_context()
        continuation.go_on(self._instance, workspace, request, write)

    def let_lie(self, request: RequestRecord) -> None:
        run = self._instance.get_run_by_id(request.continues or "")
        if run is not None:
            continuation.show(self._instance, run)
