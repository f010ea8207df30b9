"""What the daemon keeps between passes for the GPU runs of one instance, and each step of a pass for them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dagster import DagsterInstance, DagsterRun, DagsterRunStatus, RunRecord, RunsFilter

from dagster_gpufair.engine.engine import Engine
from dagster_gpufair.engine.launch_threads import LaunchThreads
from dagster_gpufair.engine.port import Launch
from dagster_gpufair.engine.writer_turn import WriterTurn
from dagster_gpufair.gate.alerts import Alerts, NoSuchFunction, Tell, function_of
from dagster_gpufair.gate.channels.channels import Channels
from dagster_gpufair.gate.dagster_internals import (
    IWorkspaceProcessContext,
    location_errors,
    location_of,
    times_queued,
)
from dagster_gpufair.gate.holders.run_holders import RunHolders
from dagster_gpufair.gate.page.run_page import (
    Word,
    again_word,
    bound_near_word,
    bound_over_word,
    cancelled_word,
    clock,
    for_whom,
    granted_word,
    lingering_word,
    notice_word,
    preempted_word,
    released_word,
    short,
    spared_word,
    stopping_word,
    unsettled_word,
)
from dagster_gpufair.gate.page.teller import Teller
from dagster_gpufair.gate.page.waiting_line import WaitingLine
from dagster_gpufair.gate.queue.arrivals import Arrivals
from dagster_gpufair.gate.queue.environment import Environment
from dagster_gpufair.gate.queue.launching import launch_granted
from dagster_gpufair.gate.queue.picking import NOT_IN_QUEUE, Picked, Picker
from dagster_gpufair.gate.queue.ungated import Ungated
from dagster_gpufair.gate.submission.admission import Refusal
from dagster_gpufair.gate.submission.coordinator import GpuFairRunCoordinator
from dagster_gpufair.gate.submission.refusing import refuse
from dagster_gpufair.ledger import lifecycle, requests
from dagster_gpufair.ledger.connect import ledger_of
from dagster_gpufair.ledger.leases import BOUND, PREEMPTION, LeaseRecord
from dagster_gpufair.ledger.requests import RequestRecord
from dagster_gpufair.scheduling.model import Plan

SUBMITTED_WITHIN = 10.0
"""Seconds that a submission may take."""
SOON = 0.2
"""Seconds between two passes at least."""
STOPS_WITHIN = 30.0
"""Seconds that a stop usually takes at most: so long, passes follow each other sooner."""
THREADS = 8
"""Launches of a code location at once under ``dequeue_use_threads`` without a number."""


class Gate:
    """Between Dagster's queue and the engine."""

    def __init__(self, instance: DagsterInstance, coordinator: GpuFairRunCoordinator, logger: Any):
        self.instance = instance
        self._logger = logger
        ledger = ledger_of(instance)
        self._start_timeout = float(instance.run_monitoring_start_timeout_seconds)
        self.teller = Teller(instance, ledger, logger)
        self._holders = RunHolders(
            instance,
            coordinator,
            WriterTurn(ledger).host,
            self._channels_in(None),
            self.teller.quiet,
            logger,
        )
        self.engine = Engine(
            ledger, self._holders, coordinator.policy_watch, logger, self._start_timeout
        )
        tell = self._function_of(coordinator.on_event)
        self.alerts = Alerts(ledger, self.engine.turn, tell, logger)
        width = (
            (coordinator.dequeue_num_workers or THREADS) if coordinator.dequeue_use_threads else 1
        )
        self.launch_threads = LaunchThreads(width)
        self.picker = Picker()
        self._queue_config = coordinator.get_run_queue_config()
        self._arrivals = Arrivals(instance, self.engine)
        self._ungated = Ungated(self.engine, logger)
        self._environment = Environment()
        self._launches: deque[tuple[int, Launch]] = deque()
        self._unadmitted: Sequence[str] = ()
        """Queued GPU runs that no policy could be asked about yet."""
        self._to_signal: list[LeaseRecord] = []
        """What was given notice in this pass."""
        self._causes: dict[str, str] = {}
        """Why runs did not start, of those that have just failed for it."""

    def _function_of(self, setting: str | None) -> Tell | None:
        """The function that is told of events; where it is not there, the queue goes on without."""
        try:
            return None if setting is None else function_of(setting)
        except NoSuchFunction as error:
            self._logger.error("Nobody is told of what happens: %s", error)
            return None

    def _channels_in(self, folder: str | None) -> Channels:
        """The channels of runs in the folder that the policy names, or beside the instance's own files."""
        self._folder = folder
        root = Path(folder) if folder else Path(self.instance.root_directory) / "gpufair"
        return Channels(root / "channels", root / "checkpoints", self._logger)

    def take_turn(self, now: float, *, clock_is_real: bool) -> bool:
        """Become or stay the one writer; what an earlier one left unfinished is taken up."""
        before = self.engine.book
        if not self.engine.take_turn(now, clock_is_real=clock_is_real):
            return False
        if self.engine.book is not before:
            self.teller.remember(self.engine.book.queued.values())
            self._tell_again()
        return True

    def _tell_again(self) -> None:
        """What an earlier daemon may not have come to say of runs that are near, or past, their end."""
        held = self.engine.book.leases
        said = {
            "near": ("ends", "over", "lingering"),
            "past": ("over", "lingering"),
            "notice": ("notice", "stopping", "lingering"),
            "stopping": ("stopping", "lingering"),
        }
        doubtful = [
            each
            for each in held.values()
            if each.warned_at or each.stop_asked_at or each.state == "notice"
        ]
        if not doubtful:
            return
        with self.engine.ledger.reading() as session:
            known = requests.by_ids(session, [each.request_id for each in doubtful])
        for lease in doubtful:
            told = known[lease.request_id].told_reason
            if lease.stop_why == PREEMPTION and told not in said["stopping"]:
                self.teller.news(stopping_word(lease, self._asker(lease)))
            elif lease.state == "notice" and told not in said["notice"]:
                self.teller.news(notice_word(lease, self._asker(lease)))
            elif lease.stop_why == BOUND and told not in said["past"]:
                self.teller.news(bound_over_word(lease))
            elif lease.warned_at and not lease.stop_asked_at and told not in said["near"]:
                self.teller.news(bound_near_word(lease))

    # -- launches -------------------------------------------------------------------------------

    def heed_launches(self, now: float) -> None:
        """Act on what came of the launches since the last pass; each is kept until that is done."""
        while self._launches:
            epoch, launch = self._launches[0]
            # What has been in other hands since is judged from the ledger.
            if epoch == self.engine.turn.epoch:
                self._heed(epoch, launch, now)
            self._launches.popleft()

    def _heed(self, epoch: int, launch: Launch, now: float) -> None:
        lease, run_id = launch.lease, launch.lease.run_id
        again = True
        if launch.kind in ("launched", "unsettled"):
            self._environment.reached(launch.location)
        if launch.kind not in ("launched", "not_queued"):
            self._logger.warning(
                "Run %s was not launched (%s): %s", run_id, launch.kind, launch.detail
            )
        if launch.kind == "unreachable":
            first_pause = self._queue_config.user_code_failure_retry_delay
            self._environment.failed(launch.location, launch.detail, now, first_pause)
            again, launch = self._once_more(launch)
        elif launch.kind == "unsettled" and lease.request_id in self.engine.book.leases:
            self.teller.news(unsettled_word(lease, launch.detail, now + self._start_timeout))
        if launch.kind == "failed" or (launch.kind == "unreachable" and not again):
            self._causes[lease.request_id] = launch.detail
        self.engine.heed(epoch, launch, again, now)

    def _once_more(self, launch: Launch) -> tuple[bool, Launch]:
        """Whether a run whose code location could not be reached is tried again, as Dagster is set to."""
        retries = self._queue_config.max_user_code_failure_retries
        tries = times_queued(self.instance, launch.lease.run_id)
        if tries <= retries:
            return True, launch
        said = f"in {retries + 1} tries " if retries else ""
        detail = (
            f"its code location could not be reached {said}"
            f"(max_user_code_failure_retries: {retries}): {launch.detail}"
        )
        return False, Launch(launch.lease, launch.kind, detail, launch.location)

    def recall(self, now: float) -> None:
        """Give back the GPUs of runs whose lane was closed before it came to them."""
        for request_id in self.launch_threads.recall():
            lease = self.engine.book.leases.get(request_id)
            if lease is not None:
                self.engine.recall(lease, "Launches before it hang.", now)

    def pending(self) -> set[str]:
        """The runs that are being launched, and those that will be because they hold GPUs."""
        leases = self.engine.book.leases
        ours = {
            *self.launch_threads.under_way(),
            *(id_ for id_, lease in leases.items() if lease.state == "granted"),
        }
        return {leases[id_].run_id if id_ in leases else id_ for id_ in ours}

    def _launch(
        self, context: IWorkspaceProcessContext, lease: LeaseRecord, run: DagsterRun, word: Word
    ) -> None:
        epoch = self.engine.turn.epoch
        assert epoch is not None

        def work() -> None:
            with self.teller.quiet(lease.run_id):
                launch = launch_granted(self.instance, context, self.engine.turn, epoch, lease)
            self._launches.append((epoch, launch))

        self.teller.granted(lease.run_id)
        self.teller.news(word)
        self.launch_threads.put(location_of(run) or "", lease.request_id, work)

    # -- the steps of a pass --------------------------------------------------------------------

    def follow(
        self,
        context: IWorkspaceProcessContext,
        unfinished: Sequence[str],
        active: Sequence[RunRecord],
        now: float,
    ) -> None:
        """Bring the book to what the runs do, and have it said whose GPUs are free again."""
        there = set(unfinished)
        self._holders.see(context, there, active)
        lingered = {
            id_ for id_, lease in self.engine.book.leases.items() if lease.state == "ending"
        }
        ended, cancelled, spared = self.engine.follow(there, self.launch_threads.under_way(), now)
        for lease in spared:
            self.teller.news(spared_word(lease))
        for lease, how, at in ended:
            cause = self._causes.pop(lease.request_id, None)
            again = self.engine.book.queued.get(lease.request_id)
            if again is not None and again.continues == lease.run_id:
                self.teller.news(preempted_word(lease, again, self._asker(lease), at))
            else:
                self.teller.over(released_word(lease, how, at, cause))
        for request, how in cancelled:
            self.teller.over(cancelled_word(request.run_id, how))
        for id_, lease in self.engine.book.leases.items():
            if lease.state == "ending" and id_ not in lingered:
                self._logger.error(
                    "Run %s is over, and its processes are there: its GPUs are held until they have "
                    "ended.",
                    lease.run_id,
                )
                self.teller.news(lingering_word(lease))
        self._unadmitted = self._arrivals.meet(unfinished, now)
        self.engine.sweep(there, now)
        if self.engine.rules.in_force is not None:
            self._ungated.find(there, active, now)
        self.engine.accrue(now)

    def broken(self, context: IWorkspaceProcessContext, now: float) -> dict[str, tuple[str, str]]:
        """The requests whose environment is not ready, and why."""
        errors = location_errors(context.create_request_context())
        locations = self._environment.broken(now, errors, self.launch_threads.closed(), clock)
        book, failed = self.engine.book, self.engine.not_going_on
        going_on = {
            id_: ("environment", _next_run_is_made(request, failed.get(id_)))
            for id_, request in book.to_go_on().items()
        }
        return going_on | {
            request.id: ("environment", locations[request.location])
            for request in (book.queued.values() if locations else ())
            if request.location in locations
        }

    def carry_out(self, context: IWorkspaceProcessContext, picked: Picked, now: float) -> set[str]:
        """Write what was picked, and begin to launch it and what was granted but not launched before.

        Returns:
            The requests whose launch was begun.
        """
        for run in picked.foreign:
            self._refuse_foreign(run, now)
        begun = set()
        unlaunched = self._take_unlaunched()
        if picked.plan is not None and self.engine.rules.in_force is not None:
            policy = self.engine.rules.in_force.policy
            starts = {start.request.id: start for start in picked.starts}
            done = self.engine.carry_out(picked.plan, picked.starts, picked.blocked, now)
            # A run finds its lease when it begins.
            self.tell_runs()
            for lease in done.granted:
                word = granted_word(lease, starts[lease.request_id], policy, now)
                self._launch(context, lease, picked.runs[lease.request_id], word)
                begun.add(lease.request_id)
            for lease in done.changed:
                self._tell_of_notice(lease)
        for lease, run in unlaunched:
            self._launch(context, lease, run, again_word(lease))
            begun.add(lease.request_id)
        return begun

    def _signal(self) -> None:
        """Wake the code of runs that were given notice, once it can find that."""
        name = self.engine.rules.policy.preemption.signal if self._to_signal else None
        if name is not None:
            self._holders.channels.finish(timeout=1)
            for lease in self._to_signal:
                self._holders.signal(lease, name)
        self._to_signal.clear()

    def _tell_of_notice(self, lease: LeaseRecord) -> None:
        """A lease was given notice, or is spared; a new term is nobody's news."""
        if lease.state == "notice":
            self.teller.news(notice_word(lease, self._asker(lease)))
            self._to_signal.append(lease)
        elif lease.notice_until is None and lease.term_from is None:
            self.teller.news(spared_word(lease))

    def _asker(self, lease: LeaseRecord) -> RequestRecord | None:
        """What a lease is under notice for, as long as that waits."""
        return self.engine.book.queued.get(lease.notice_for or "")

    def tell_runs(self) -> None:
        """Have the code of runs find their leases and their notices."""
        in_force = self.engine.rules.in_force
        if in_force is None:
            return
        folder = in_force.policy.preemption.folder
        if folder != self._folder:
            self._holders.channels.end(timeout=1)
            self._holders.channels = self._channels_in(folder)
        self._holders.tell(
            self.engine.book.leases.values(), lambda lease: for_whom(lease, self._asker(lease))
        )

    def _take_unlaunched(self) -> list[tuple[LeaseRecord, DagsterRun]]:
        """What holds GPUs and is still to be launched, though nobody does."""
        wanted = {lease.run_id: lease for lease in self.engine.to_launch.values()}
        if not wanted:
            return []
        statuses = [DagsterRunStatus.QUEUED, DagsterRunStatus.STARTING]
        runs = self.instance.get_runs(RunsFilter(run_ids=list(wanted), statuses=statuses))
        return [(wanted[run.run_id], run) for run in runs]

    def _refuse_foreign(self, run: DagsterRun, now: float) -> None:
        """Fail a run that bears the name of a code location whose code it does not have."""
        location = location_of(run)
        message = (
            f"its code is not that of code location '{location}' in this deployment's workspace. Launch "
            "the job from the deployment's own workspace (the UI, or `dagster job launch` with its "
            "workspace file)."
        )
        request = self.engine.book.request_of_run(run.run_id)
        if request is None:
            return
        with self.engine.turn.writing() as session:
            lifecycle.refuse(session, request, "invalid_request", message, now)
        self.engine.book.leave(request.id)
        refuse(self.instance, run, Refusal("invalid_request", message))

    def keep_bounds(self, now: float) -> None:
        """Tell the runs whose time is nearly over, and stop those that are past it."""
        near, past = self.engine.keep_bounds(now)
        for lease in near:
            self.teller.news(bound_near_word(lease))
        for lease in past:
            if lease.stop_why == PREEMPTION:
                self.teller.news(stopping_word(lease, self._asker(lease)))
            else:
                self.teller.news(bound_over_word(lease))
        self.tell_runs()
        self._signal()
        self.engine.make_stops()
        self.engine.go_on()

    def tell(self, picked: Picked, now: float) -> None:
        """Have said on the runs' pages what has changed."""
        plan = picked.plan or Plan((), ())
        outside = {
            self.engine.book.run_of(start.request.id): (
                start.pool,
                *picked.blocked[start.request.id],
            )
            for start in plan.starts
            if start.request.id in picked.blocked
        }
        for run_id in self._unadmitted:
            outside[run_id] = ("not yet admitted", "environment", "No GPU policy is in force.")
        # Between the two steps of a submission there is nothing to say.
        queued = self.engine.book.queued
        quiet = {
            queued[id_].run_id
            for id_, why in picked.blocked.items()
            if why == NOT_IN_QUEUE
            and id_ in queued
            and now - queued[id_].submitted_at < SUBMITTED_WITHIN
        }
        # Of what was stopped, the page says so; the next run's is not there yet.
        quiet |= {request.run_id for request in self.engine.book.to_go_on().values()}
        rules, book = self.engine.rules, self.engine.book
        line = WaitingLine(plan, outside, book.run_of, rules.trouble, rules.version, quiet)
        self.teller.speak(line, now)
        self.alerts.look()

    def pause(self, interval: float) -> float:
        """Seconds between two passes: fewer where a notice ends sooner, or somebody waits for a stop."""
        now, held = time.time(), self.engine.book.leases.values()
        if any(
            lease.stop_why == PREEMPTION and now - (lease.stop_asked_at or now) < STOPS_WITHIN
            for lease in held
        ):
            return min(interval, SOON)
        ends = [lease.notice_until for lease in held if lease.state == "notice"]
        left = min((end - now for end in ends if end is not None), default=interval)
        return min(interval, max(SOON, left))

    def close(self) -> None:
        """End as one should."""
        self.teller.finish(timeout=5)
        self._holders.channels.end(timeout=5)
        self.engine.close()


def _next_run_is_made(request: RequestRecord, trouble: str | None) -> str:
    stopped = short(request.continues or "")
    if trouble is None:
        return f"Run {stopped} was stopped for others; the run that goes on with its work is being made."
    return f"The run that goes on with the work of {stopped} could not be made, and is tried again: {trouble}"
