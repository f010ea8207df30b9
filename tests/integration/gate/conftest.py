"""A stage for the gate: a real instance, ledger, coordinator and daemon; only the processes are missing."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from dagster import DagsterEvent, DagsterEventType, DagsterInstance, DagsterRun, DagsterRunStatus
from dagster._core.origin import JobPythonOrigin, RepositoryPythonOrigin
from dagster._core.remote_origin import (
    GrpcServerCodeLocationOrigin,
    RemoteJobOrigin,
    RemoteRepositoryOrigin,
)
from dagster._core.test_utils import create_run_for_test, create_test_daemon_workspace_context
from dagster._core.workspace.load_target import EmptyWorkspaceTarget

from dagster_gpufair.gate.daemon import GpuFairQueueDaemon
from dagster_gpufair.ledger import audit
from dagster_gpufair.ledger.connect import Ledger, ledger_of

POLICY = """
pools: {a100: {nodes: {n1: 8}}, t4: {gpus: 4}}
teams:
  red: {quota: {a100: 4, t4: 2}}
  blue: {quota: {a100: 4}, tiers: [milestone, standard, exploratory]}
"""


class Stage:
    """What a test does as a user, a run or an operator, and what it sees."""

    def __init__(self, instance: DagsterInstance, context: Any, policy_file: Path):
        self.instance = instance
        self.context = context
        self.policy_file = policy_file
        self.daemon = self.new_daemon()

    @staticmethod
    def new_daemon() -> GpuFairQueueDaemon:
        """A daemon that knows nothing, as after a restart."""
        return GpuFairQueueDaemon(interval_seconds=1)

    @property
    def ledger(self) -> Ledger:
        return ledger_of(self.instance)

    @property
    def launcher(self) -> Any:
        return self.instance.run_launcher

    @property
    def launched(self) -> list[str]:
        """The ids of the runs that were launched, in order."""
        return self.launcher.launched

    def write_policy(self, text: str) -> None:
        self.policy_file.write_text(textwrap.dedent(text))

    def create(
        self, job: str = "train", location: str = "jobs", parent: str | None = None, **tags: Any
    ) -> DagsterRun:
        """A run that is not submitted yet. Tags by their short names: ``team``, ``gpus``."""
        code = JobPythonOrigin(job, RepositoryPythonOrigin("python", _pointer()))
        origin = RemoteJobOrigin(
            RemoteRepositoryOrigin(
                GrpcServerCodeLocationOrigin(host="localhost", port=1, location_name=location), "r"
            ),
            job,
        )
        written = {
            key if "/" in key else f"gpufair/{key}": str(value) for key, value in tags.items()
        }
        return create_run_for_test(
            self.instance,
            job_name=job,
            tags=written,
            remote_job_origin=origin,
            job_code_origin=code,
            status=DagsterRunStatus.NOT_STARTED,
            parent_run_id=parent,
            root_run_id=parent,
        )

    def submit(self, job: str = "train", location: str = "jobs", **tags: Any) -> str:
        """Submit a run as the UI, a schedule or a backfill does; its id."""
        run = self.create(job, location, **tags)
        self.instance.submit_run(run.run_id, self.context.create_request_context())
        return run.run_id

    def enqueue(self, job: str = "train", location: str = "jobs", **tags: Any) -> str:
        """A queued run that our coordinator has never seen."""
        run = self.create(job, location, **tags)
        self.instance.report_dagster_event(DagsterEvent.job_enqueue(run), run_id=run.run_id)
        return run.run_id

    def pass_(self, daemon: Any = None, at: float | None = None) -> list[Any]:
        """One iteration of the queue daemon; the errors it reports."""
        daemon = daemon or self.daemon
        return [error for error in daemon.run_iteration(self.context, at) if error is not None]

    def run(self, run_id: str) -> DagsterRun:
        run = self.instance.get_run_by_id(run_id)
        assert run is not None
        return run

    def status(self, run_id: str) -> str:
        return self.run(run_id).status.value

    def tags(self, run_id: str) -> dict[str, str]:
        """Our tags on a run, by their short names."""
        tags = self.run(run_id).tags
        return {
            key.removeprefix("gpufair/"): value
            for key, value in tags.items()
            if key.startswith("gpufair/")
        }

    def events(self, run_id: str) -> str:
        """All that a run's event log says."""
        logs = self.instance.all_logs(run_id)
        return "\n".join(log.dagster_event.message or "" for log in logs if log.dagster_event)

    def report(self, run_id: str, event: DagsterEventType) -> None:
        """Something happens to a run: it starts, succeeds, fails."""
        job = self.run(run_id).job_name
        self.instance.report_dagster_event(DagsterEvent(event.value, job), run_id=run_id)

    def start(self, run_id: str) -> None:
        self.report(run_id, DagsterEventType.PIPELINE_START)

    def succeed(self, run_id: str) -> None:
        self.report(run_id, DagsterEventType.PIPELINE_SUCCESS)

    def cancel(self, run_id: str) -> None:
        """As the UI's Terminate does."""
        self.instance.run_coordinator.cancel_run(run_id)

    def violations(self) -> list[str]:
        """What the ledger's own record says was exceeded."""
        with self.ledger.reading() as session:
            return list(audit.violations(session))


def _pointer() -> Any:
    from dagster._core.code_pointer import ModuleCodePointer

    return ModuleCodePointer("jobs", "defs")


@pytest.fixture
def open_stage(
    instance_with: Callable[..., DagsterInstance], tmp_path: Path
) -> Iterator[Callable[..., Stage]]:
    """Opens a stage with a policy and options of the coordinator."""
    contexts = []

    def opened(policy: str | None = POLICY, **options: Any) -> Stage:
        sections = {"concurrency": options.pop("concurrency")} if "concurrency" in options else {}
        if "run_retries" in options:
            sections["run_retries"] = options.pop("run_retries")
        file = tmp_path / "gpufair.yaml"
        if policy is not None:
            file.write_text(policy)
        instance = instance_with(
            run_coordinator={
                "module": "dagster_gpufair",
                "class": "GpuFairRunCoordinator",
                "config": {"policy": str(file), **options},
            },
            run_launcher={"module": "stage_launcher", "class": "StageLauncher"},
            **sections,
        )
        context = create_test_daemon_workspace_context(EmptyWorkspaceTarget(), instance)
        contexts.append(context)
        return Stage(instance, context.__enter__(), file)

    yield opened
    for context in contexts:
        context.__exit__(None, None, None)


@pytest.fixture
def stage(open_stage: Callable[..., Stage]) -> Stage:
    """The usual stage: two teams, eight A100s and four T4s."""
    return open_stage()
