"""A stage for the gate: a real instance, ledger, coordinator and daemon; only the processes are missing."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import textwrap
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from dagster import (
    AssetKey,
    DagsterEvent,
    DagsterEventType,
    DagsterInstance,
    DagsterRun,
    DagsterRunStatus,
    QueuedRunCoordinator,
)
from dagster._core.code_pointer import ModuleCodePointer
from dagster._core.origin import JobPythonOrigin, RepositoryPythonOrigin
from dagster._core.remote_origin import (
    GrpcServerCodeLocationOrigin,
    RemoteJobOrigin,
    RemoteRepositoryOrigin,
)
from dagster._core.storage.dagster_run import RunOpConcurrency
from dagster._core.test_utils import create_run_for_test, create_test_daemon_workspace_context
from dagster._core.workspace.load_target import EmptyWorkspaceTarget, GrpcServerTarget
from dagster._daemon.run_coordinator.queued_run_coordinator_daemon import (
    QueuedRunCoordinatorDaemon,
)
from dagster_graphql.client.query import LAUNCH_PIPELINE_EXECUTION_MUTATION
from dagster_graphql.test.utils import execute_dagster_graphql

from dagster_gpufair.gate.queue.daemon import GpuFairQueueDaemon
from dagster_gpufair.ledger import audit, events, leases, requests, status, writer
from dagster_gpufair.ledger.connect import Ledger, ledger_of
from dagster_gpufair.ledger.leases import LeaseRecord
from dagster_gpufair.ledger.requests import RequestRecord

HOST = "127.0.0.1"
OURS = {"module": "dagster_gpufair", "class": "GpuFairRunCoordinator"}
LOGGERS = ("dagster.daemon.GpuFairQueueDaemon", "dagster.run_coordinator.queued_run_coordinator")
LAUNCH = ("claimed", "launched", "started")
SECTIONS = ("concurrency", "run_retries", "run_coordinator", "run_monitoring")
POLICY = """
pools: {a100: {nodes: {n1: 8}}, t4: {gpus: 4}}
teams:
  red: {quota: {a100: 4, t4: 2}}
  blue: {quota: {a100: 4}, tiers: [milestone, standard, exploratory]}
"""


class Stage:
    """What a test does as a user, a run or an operator, and what it sees."""

    def __init__(self, instance: DagsterInstance, context: Any, policy_file: Path, log: Log):
        self.log = log
        self.instance = instance
        self.context = context
        self.policy_file = policy_file
        self.at: float | None = None
        """The moment that passes are made at; None for when they are made."""
        self.daemon = self.new_daemon()

    @staticmethod
    def new_daemon() -> GpuFairQueueDaemon:
        """A daemon that knows nothing, as after a restart."""
        return GpuFairQueueDaemon(interval_seconds=1)

    def restart_daemon(self) -> None:
        """The daemon ends as it should, and another begins."""
        self.end_daemon()
        self.daemon = self.new_daemon()

    def end_daemon(self) -> None:
        """The daemon ends as it should; nothing of it goes on."""
        with self.daemon:
            pass

    @property
    def ledger(self) -> Ledger:
        return ledger_of(self.instance)

    @property
    def coordinator(self) -> QueuedRunCoordinator[Any]:
        coordinator = self.instance.run_coordinator
        assert isinstance(coordinator, QueuedRunCoordinator)
        return coordinator

    @property
    def launcher(self) -> Any:
        return self.instance.run_launcher

    @property
    def launched(self) -> list[str]:
        """The ids of the runs that were launched, in order."""
        return self.launcher.launched

    def write_policy(self, text: str) -> None:
        self.policy_file.write_text(textwrap.dedent(text))

    # -- what a user does -----------------------------------------------------------------------

    def create(
        self,
        job: str = "train",
        location: str = "jobs",
        repository: str = "__repository__",
        parent: str | None = None,
        pools: Collection[str] = (),
        assets: Collection[str] = (),
        **tags: Any,
    ) -> DagsterRun:
        """A run that is not submitted yet. Tags by their short names: ``team``, ``gpus``.

        ``pools`` are Dagster's own, which its steps need.
        """
        code = JobPythonOrigin(
            job, RepositoryPythonOrigin("python", ModuleCodePointer("jobs", "defs"))
        )
        origin = RemoteJobOrigin(
            RemoteRepositoryOrigin(
                GrpcServerCodeLocationOrigin(host="localhost", port=1, location_name=location),
                repository,
            ),
            job,
        )
        written = {
            key if "/" in key or key == "user" else f"gpufair/{key}": str(value)
            for key, value in tags.items()
        }
        run = create_run_for_test(
            self.instance,
            job_name=job,
            tags=written,
            remote_job_origin=origin,
            job_code_origin=code,
            status=DagsterRunStatus.NOT_STARTED,
            parent_run_id=parent,
            root_run_id=parent,
            asset_selection=frozenset(AssetKey(asset) for asset in assets) or None,
        )
        return self._with_pools(run, pools) if pools else run

    def _with_pools(self, run: DagsterRun, pools: Collection[str]) -> DagsterRun:
        """The same run with a step for each of these pools, which Dagster finds in the job otherwise."""
        steps = RunOpConcurrency(
            root_key_counts=dict.fromkeys(pools, 1),
            has_unconstrained_root_nodes=False,
            all_pools=set(pools),
        )
        self.instance.delete_run(run.run_id)
        return self.instance.run_storage.add_run(run._replace(run_op_concurrency=steps))

    def submit(self, job: str = "train", location: str = "jobs", **given: Any) -> str:
        """Submit a run as the UI, a schedule or a backfill does; its id."""
        run = self.create(job, location, **given)
        self.instance.submit_run(run.run_id, self.context.create_request_context())
        return run.run_id

    def launch(self, job: str = "train", location: str = "jobs", **tags: Any) -> str:
        """Launch a job of a code location that is there, as the UI does; its id."""
        selector = {
            "repositoryLocationName": location,
            "repositoryName": "__repository__",
            "pipelineName": job,
        }
        given = [
            {"key": key if "/" in key else f"gpufair/{key}", "value": str(value)}
            for key, value in tags.items()
        ]
        params = {"selector": selector, "executionMetadata": {"tags": given}}
        result = execute_dagster_graphql(
            self.context.create_request_context(),
            LAUNCH_PIPELINE_EXECUTION_MUTATION,
            {"executionParams": params},
        )
        launched = result.data["launchPipelineExecution"]
        assert launched["__typename"] == "LaunchRunSuccess", launched
        return str(launched["run"]["runId"])

    def enqueue(self, job: str = "train", location: str = "jobs", **given: Any) -> str:
        """A queued run that our coordinator has never seen."""
        run = self.create(job, location, **given)
        self.instance.report_dagster_event(DagsterEvent.job_enqueue(run), run_id=run.run_id)
        return run.run_id

    def cancel(self, run_id: str) -> None:
        """As the UI's Terminate does."""
        self.instance.run_coordinator.cancel_run(run_id)

    def delete(self, run_id: str) -> None:
        """As the UI's Delete does."""
        self.instance.delete_run(run_id)

    # -- what a run does ------------------------------------------------------------------------

    def report(self, run_id: str, event: DagsterEventType) -> None:
        job = self.run(run_id).job_name
        self.instance.report_dagster_event(DagsterEvent(event.value, job), run_id=run_id)

    def start(self, run_id: str) -> None:
        self.report(run_id, DagsterEventType.PIPELINE_START)

    def succeed(self, run_id: str) -> None:
        self.report(run_id, DagsterEventType.PIPELINE_SUCCESS)

    def finish_all(self, most_passes: int = 20) -> None:
        """Every run that was launched succeeds, and the rest after it, until none is left."""
        for _ in range(most_passes):
            left = self.unfinished()
            if not left:
                break
            for run_id, state in left.items():
                if state in ("STARTING", "STARTED"):
                    self.succeed(run_id)
            self.pass_()
        assert not self.unfinished()
        self.pass_()

    # -- what an operator does ------------------------------------------------------------------

    def pass_(self, daemon: Any = None, at: float | None = None) -> None:
        """One iteration of the queue daemon, in which nothing goes wrong."""
        assert self._iterate(daemon or self.daemon, at or self.at) == []

    def _iterate(self, daemon: Any, at: float | None) -> list[Any]:
        """One iteration, and all that it has said on runs' pages; the errors of it."""
        with turns_at(at):
            errors = list(filter(None, daemon.run_iteration(self.context, at)))
        if daemon._gate is not None:
            assert daemon._gate.teller.finish(timeout=60)
        return errors

    def pass_until(self, condition: Callable[[], bool]) -> None:
        """One iteration after the other, as the daemon makes them, until something is so."""
        deadline = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < deadline
            self.pass_()
            time.sleep(0.02)

    def troubled_pass(self, daemon: Any = None, at: float | None = None) -> list[str]:
        """One iteration in which something goes wrong: what Dagster's loop would show of it."""
        errors = []
        try:
            with turns_at(at or self.at):
                for error in (daemon or self.daemon).run_iteration(self.context, at or self.at):
                    if error is not None:
                        errors.append(error.message)
        except Exception as error:  # noqa: BLE001 -- so does the loop around every Dagster daemon
            errors.append(str(error))
        return errors

    def stock_pass(self) -> None:
        """One iteration of Dagster's own queue daemon."""
        list(QueuedRunCoordinatorDaemon(interval_seconds=1).run_iteration(self.context))

    # -- what is to be seen ---------------------------------------------------------------------

    def run(self, run_id: str) -> DagsterRun:
        run = self.instance.get_run_by_id(run_id)
        assert run is not None
        return run

    def status(self, run_id: str) -> str:
        return self.run(run_id).status.value

    def unfinished(self) -> Mapping[str, str]:
        """The states of all runs that are not over, by id."""
        return {
            run.run_id: run.status.value for run in self.instance.get_runs() if not run.is_finished
        }

    def began(self, run_id: str) -> float:
        """When a run's worker began, by Dagster's record."""
        record = self.instance.get_run_record_by_id(run_id)
        assert record is not None and record.start_time is not None
        return record.start_time

    def tags(self, run_id: str) -> dict[str, str]:
        """Our tags on a run, by their short names."""
        tags = self.run(run_id).tags
        return {
            key.removeprefix("gpufair/"): value
            for key, value in tags.items()
            if key.startswith("gpufair/")
        }

    def reason(self, run_id: str) -> str:
        """Why a run waits, as its page says."""
        return self.tags(run_id)["reason"].partition(" · ")[0]

    def events(self, run_id: str) -> str:
        """All that a run's event log says."""
        logs = self.instance.all_logs(run_id)
        return "\n".join(log.dagster_event.message or "" for log in logs if log.dagster_event)

    def request(self, run_id: str) -> RequestRecord | None:
        """A run's request, as the ledger has it."""
        with self.ledger.reading() as session:
            return requests.by_ids(session, [run_id]).get(run_id)

    def leases(self, run_id: str) -> Sequence[LeaseRecord]:
        """All leases that a run ever had."""
        with self.ledger.reading() as session:
            return leases.of_run(session, run_id)

    def history(self, run_id: str) -> list[str]:
        """What the ledger says has happened to a run, but for why it waited and the steps of its launch."""
        left_out = ("waits", *LAUNCH)
        return [kind for kind in self.whole_history(run_id) if kind not in left_out]

    def whole_history(self, run_id: str) -> list[str]:
        """The kinds of all that the ledger says has happened to a run, in order."""
        with self.ledger.reading() as session:
            return [event.kind for event in events.of_run(session, run_id)]

    def holders(self) -> set[str]:
        """The runs that hold GPUs, as the ledger has it."""
        with self.ledger.reading() as session:
            return {lease.run_id for lease in leases.open_leases(session)}

    def said(self, key: str) -> Any:
        """What the ledger's status says under a key."""
        with self.ledger.reading() as session:
            return status.get(session, key)

    def violations(self) -> list[str]:
        """What the ledger's own record says was exceeded."""
        with self.ledger.reading() as session:
            return list(audit.violations(session))

    def assert_nothing_lost(self) -> None:
        """What must be true whatever has happened, once a pass has gone well."""
        twice = [run_id for run_id, times in Counter(self.launched).items() if times > 1]
        assert twice == []
        assert self.holders() <= self.unfinished().keys()
        violations = self.violations()
        assert not violations, violations


_offset = threading.local()
_newest = [0.0]
"""The offset of the newest pass: for threads that are not a pass."""


@contextmanager
def turns_at(at: float | None) -> Iterator[None]:
    """The clock that turns are measured by is where a pass's time of day is."""
    before = getattr(_offset, "seconds", 0.0)
    _offset.seconds = _newest[0] = 0.0 if at is None else at - time.time()
    try:
        yield
    finally:
        _offset.seconds = before


def moved_turn_clock(usual: Callable[[Any], writer.Clock]) -> Callable[[Any], writer.Clock]:
    """The clock of turns, moved as `turns_at` says."""

    def turn_clock(session: Any) -> writer.Clock:
        clock = usual(session)
        return writer.Clock(clock.now + getattr(_offset, "seconds", _newest[0]), clock.whose)

    return turn_clock


def code_at(port: int | None) -> Any:
    """A workspace with the code location ``jobs`` of a code server, or with none."""
    if port is None:
        return EmptyWorkspaceTarget()
    return GrpcServerTarget(host=HOST, port=port, socket=None, location_name="jobs")


@contextmanager
def code_server(file: Path) -> Iterator[int]:
    """A code server for a file, as a process of its own; its port."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port = probe.getsockname()[1]
    arguments = ["-m", "dagster", "api", "grpc", "-f", str(file), "--host", HOST, "-p", str(port)]
    server = subprocess.Popen([sys.executable, *arguments, "--location-name", "jobs"])
    try:
        deadline = time.monotonic() + 60
        with socket.socket() as caller:
            while caller.connect_ex((HOST, port)) != 0:
                assert time.monotonic() < deadline and server.poll() is None
                time.sleep(0.1)
        yield port
    finally:
        server.terminate()
        server.wait(timeout=30)


@contextmanager
def stage_at(
    home: Path, storage: Mapping[str, Any], policy: str | bytes | None = POLICY, **options: Any
) -> Iterator[Stage]:
    """A stage in a folder, with a policy, options of the coordinator, and sections of ``dagster.yaml``.

    ``code`` is the port of a code server, for a code location ``jobs`` that really is there.
    """
    target = code_at(options.pop("code", None))
    file = home / "gpufair.yaml"
    if policy is not None:
        file.write_bytes(policy if isinstance(policy, bytes) else textwrap.dedent(policy).encode())
    sections = {name: options.pop(name) for name in SECTIONS if name in options}
    config = {
        "storage": storage,
        "telemetry": {"enabled": False},
        "run_coordinator": {**OURS, "config": {"policy": str(file), **options}},
        "run_launcher": {"module": "stage_launcher", "class": "StageLauncher"},
        **sections,
    }
    (home / "dagster.yaml").write_text(yaml.safe_dump(config))
    with DagsterInstance.from_config(str(home)) as instance:
        ledger = ledger_of(instance)
        workspace = create_test_daemon_workspace_context(target, instance)
        # After Dagster has set its loggers up, which forgets what listened to them.
        with workspace as context, Log(*LOGGERS) as log:
            stage = Stage(instance, context, file, log)
            yield stage
        for event in stage.launcher.hanging.values():
            event.set()
        stage.end_daemon()
        ledger.dispose()


def in_child(work: Callable[[], object]) -> int:
    """Do it in a process of its own that is a copy of this one, and may die of it; its exit code."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException:  # noqa: BLE001 -- the copy must not go on with the tests
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


class Log(logging.Handler):
    """What loggers say, to be looked at."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        self._records: list[logging.LogRecord] = []
        self._loggers = [logging.getLogger(name) for name in names]

    def emit(self, record: logging.LogRecord) -> None:
        self._records.append(record)

    def __enter__(self) -> Log:
        for logger in self._loggers:
            logger.addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        for logger in self._loggers:
            logger.removeHandler(self)

    def said(self, least: int = logging.WARNING) -> list[str]:
        """The messages of this weight or more since the last time."""
        found = [record.getMessage() for record in self._records if record.levelno >= least]
        self._records.clear()
        return found
