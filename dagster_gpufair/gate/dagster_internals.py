"""Every private part of Dagster that the gate relies on, in one place.

``tests/integration/gate/test_gate_dagster_internals.py`` names what is relied on, so that a Dagster
release that moves something fails there, by name.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from inspect import signature
from threading import Event
from typing import TYPE_CHECKING, Any

from dagster import (
    DagsterEvent,
    DagsterEventType,
    DagsterInstance,
    DagsterRun,
    DagsterRunStatus,
    RunRecord,
    RunsFilter,
)
from dagster._core.definitions.selector import JobSubsetSelector
from dagster._core.errors import (
    DagsterCodeLocationLoadError,
    DagsterCodeLocationNotFoundError,
    DagsterInvalidSubsetError,
    DagsterUserCodeUnreachableError,
)
from dagster._core.events import EngineEventData
from dagster._core.execution.plan.resume_retry import ReexecutionStrategy
from dagster._core.instance.config import ConcurrencyConfig
from dagster._core.launcher import LaunchRunContext, WorkerStatus
from dagster._core.op_concurrency_limits_counter import GlobalOpConcurrencyLimitsCounter
from dagster._core.remote_representation.code_location import CodeLocation
from dagster._core.remote_representation.external import RemoteJob
from dagster._core.run_coordinator.queued_run_coordinator import RunQueueConfig
from dagster._core.storage.dagster_run import FINISHED_STATUSES
from dagster._core.storage.tags import (
    BACKFILL_ID_TAG,
    BACKFILL_TAGS,
    GRPC_INFO_TAG,
    MAX_RETRIES_TAG,
    PRIORITY_TAG,
    SCHEDULE_NAME_TAG,
    SENSOR_NAME_TAG,
    USER_TAG,
    WILL_RETRY_TAG,
)
from dagster._core.workspace.context import BaseWorkspaceRequestContext, IWorkspaceProcessContext
from dagster._daemon import controller
from dagster._daemon.daemon import DaemonIterator, SpanMarker
from dagster._daemon.run_coordinator.queued_run_coordinator_daemon import (
    QueuedRunCoordinatorDaemon,
)
from dagster._serdes import ConfigurableClassData
from dagster._utils.error import serializable_error_info_from_exc_info
from dagster._utils.tags import TagConcurrencyLimitsCounter

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "BACKFILL_ID_TAG",
    "BACKFILL_TAGS",
    "ENVIRONMENT_ERRORS",
    "GRPC_INFO_TAG",
    "MAX_RETRIES_TAG",
    "PRIORITY_TAG",
    "SCHEDULE_NAME_TAG",
    "SENSOR_NAME_TAG",
    "SHARES_POOLS_READ",
    "UNFINISHED_RUN_STATUSES",
    "USER_TAG",
    "WILL_RETRY_TAG",
    "BaseWorkspaceRequestContext",
    "ConcurrencyConfig",
    "ConfigurableClassData",
    "DaemonIterator",
    "IWorkspaceProcessContext",
    "NothingToRetry",
    "QueuedRunCoordinatorDaemon",
    "RunLimits",
    "RunQueueConfig",
    "WithoutRuns",
    "WorkerStatus",
    "asset_tags_of",
    "close_instance_limits",
    "close_tag_limits",
    "copies_output",
    "downstream_of",
    "enqueue",
    "error_info",
    "from_failure",
    "install_daemon",
    "is_foreign",
    "iterate",
    "job_of",
    "launch",
    "location_errors",
    "location_of",
    "mark_starting",
    "open_tag_limits",
    "processes_in_log",
    "report_engine_event",
    "times_queued",
    "was_surely_not_sent",
]

_logger = logging.getLogger(__name__)

UNFINISHED_RUN_STATUSES = [status for status in DagsterRunStatus if status not in FINISHED_STATUSES]

ENVIRONMENT_ERRORS = (
    DagsterUserCodeUnreachableError,
    DagsterCodeLocationLoadError,
    DagsterCodeLocationNotFoundError,
)
"""What a launch raises when its code location cannot be reached, rather than when the run is bad."""


_TAIL = ["tail", "-F", "-c", "+0"]


def was_surely_not_sent(error: BaseException) -> bool:
    """Whether a launch that raised this has certainly not reached the code server.

    What timed out, or broke off on the way, may have arrived: its run may still begin.
    """
    if not isinstance(error, DagsterUserCodeUnreachableError):
        return True
    cause: Any = error.__cause__
    if cause is None or not hasattr(cause, "code"):
        return False
    return cause.code().name == "UNAVAILABLE" and "failed to connect" in (cause.details() or "")


def processes_in_log(instance: DagsterInstance, run_id: str) -> list[tuple[int, float]]:
    """The processes that a run's event log names, and when: of its worker, and of its steps."""
    named = []
    kinds = {DagsterEventType.ENGINE_EVENT, DagsterEventType.STEP_WORKER_STARTED}
    for entry in instance.event_log_storage.get_logs_for_run(run_id, of_type=kinds):
        data = entry.dagster_event.event_specific_data if entry.dagster_event else None
        if isinstance(data, EngineEventData) and "pid" in data.metadata:
            with suppress(ValueError):
                named.append((int(str(data.metadata["pid"].value)), entry.timestamp))
    return named


def copies_output(command: Sequence[str]) -> bool:
    """Whether a process only copies what a step prints, or looks after one that does, by its command line.

    Dagster begins two of these beside each step; one of them may outlive a worker that was killed.
    """
    return command[:4] == _TAIL or any(part.endswith("watch_orphans.py") for part in command[1:2])


def install_daemon(daemon: type[QueuedRunCoordinatorDaemon]) -> None:
    """Make ``dagster dev``, ``dagster-daemon run`` and the Helm chart start this queue daemon.

    They look the class up in the controller module when they start their daemons, which is after the
    instance, and so the coordinator, has been loaded.
    """
    controller.QueuedRunCoordinatorDaemon = daemon  # type: ignore[attr-defined]


def _closed(tags: Sequence[str]) -> list[dict[str, Any]]:
    return [{"key": tag, "limit": 0} for tag in tags]


def close_tag_limits(limits: Sequence[Mapping[str, Any]] | None, tags: Sequence[str]) -> list[Any]:
    """Tag concurrency limits under which nothing that bears one of the tags is started."""
    return [*(limits or ()), *_closed(tags)]


def open_tag_limits(config: ConcurrencyConfig, tags: Sequence[str]) -> ConcurrencyConfig:
    """The concurrency settings without the limits that `close_tag_limits` added."""
    queue = config.run_queue_config
    assert queue is not None, "a queued run coordinator always has a run queue config"
    closed = _closed(tags)
    limits = [limit for limit in queue.tag_concurrency_limits if dict(limit) not in closed]
    return ConcurrencyConfig(
        pool_config=config.pool_config,
        run_queue_config=queue._replace(tag_concurrency_limits=limits),
    )


def close_instance_limits(instance: DagsterInstance, tags: Sequence[str]) -> None:
    """Close the tags also where ``concurrency.runs.tag_concurrency_limits`` replaces the coordinator's."""
    runs = instance.get_settings("concurrency").get("runs") or {}
    limits = runs.get("tag_concurrency_limits")
    if limits is not None and not all(limit in limits for limit in _closed(tags)):
        runs["tag_concurrency_limits"] = close_tag_limits(limits, tags)


def location_of(run: DagsterRun) -> str | None:
    """The code location that owns the run's job; runs made by hand may have none."""
    return run.remote_job_origin.location_name if run.remote_job_origin else None


def location_errors(workspace: BaseWorkspaceRequestContext) -> dict[str, str]:
    """The code locations that could not be loaded, with the error."""
    return {
        name: entry.load_error.message or "no message"
        for name, entry in workspace.get_code_location_entries().items()
        if entry.load_error is not None
    }


def asset_tags_of(
    workspace: BaseWorkspaceRequestContext, run: DagsterRun
) -> dict[str, Mapping[str, str]]:
    """The definition tags of the assets that a run materializes, by asset; they are not the run's own.

    Of its own code location: another may have assets, or a job, of the same name.
    """
    origin = run.remote_job_origin
    if origin is None or not workspace.has_code_location(origin.location_name):
        return {}
    location = workspace.get_code_location(origin.location_name)
    name = origin.repository_origin.repository_name
    if not location.has_repository(name):
        return {}
    graph = location.get_repository(name).asset_graph
    keys = run.asset_selection
    if keys is None and run.job_name in graph.all_job_names:
        keys = graph.asset_keys_for_job(run.job_name)
    return {
        key.to_user_string(): graph.get(key).tags for key in sorted(keys or ()) if graph.has(key)
    }


def downstream_of(workspace: BaseWorkspaceRequestContext, run: DagsterRun) -> list[str]:
    """The assets that are made from those of a run, by their names; none where it makes none."""
    origin = run.remote_job_origin
    if origin is None or not run.asset_selection:
        return []
    graph = workspace.asset_graph
    there = [key for key in run.asset_selection if graph.has(key)]
    found = {child for key in there for child in graph.get(key).child_keys}
    return sorted(key.to_user_string() for key in found - set(run.asset_selection))


def report_engine_event(
    instance: DagsterInstance, run: DagsterRun, message: str, metadata: Mapping[str, Any]
) -> None:
    """Say something in a run's event log, with links."""
    instance.report_engine_event(message, run, EngineEventData(dict(metadata)))


def is_foreign(workspace: BaseWorkspaceRequestContext, run: DagsterRun) -> bool:
    """Whether a run's code is other than that of the code location whose name it bears.

    A launch with a workspace file of one's own can name any location. Alike are a run of the same code
    server, and one of the same code (module, file, image) from another.
    """
    origin = run.remote_job_origin
    if origin is None or not workspace.has_code_location(origin.location_name):
        return False
    location = workspace.get_code_location(origin.location_name)
    if origin.repository_origin.code_location_origin == location.origin:
        return False
    name, code = origin.repository_origin.repository_name, run.job_code_origin
    if code is None or not location.has_repository(name):
        return True
    return bool(location.get_repository_python_origin(name) != code.repository_origin)


class NothingToRetry(Exception):
    """A run has no step that could be executed again."""


def job_of(
    workspace: BaseWorkspaceRequestContext, run: DagsterRun
) -> tuple[CodeLocation, RemoteJob]:
    """The job of a run as its code location has it now, with the run's selection.

    Raises:
        DagsterUserCodeUnreachableError, DagsterCodeLocationLoadError: if it cannot be asked now.
        LookupError: if there is no such job any more.
    """
    origin = run.remote_job_origin
    if origin is None:
        raise LookupError("it has no code location")
    location = workspace.get_code_location(origin.location_name)
    name = origin.repository_origin.repository_name
    if not location.has_repository(name) or not location.get_repository(name).has_job(run.job_name):
        raise LookupError(
            f"code location {origin.location_name} has no job {run.job_name} any more"
        )
    selector = JobSubsetSelector(
        location_name=origin.location_name,
        repository_name=name,
        job_name=run.job_name,
        op_selection=run.op_selection,
        asset_selection=run.asset_selection,
        asset_check_selection=run.asset_check_selection,
    )
    return location, location.get_job(selector)


def from_failure(
    instance: DagsterInstance,
    workspace: BaseWorkspaceRequestContext,
    location: CodeLocation,
    job: RemoteJob,
    stopped: DagsterRun,
    tags: Mapping[str, str],
) -> DagsterRun:
    """A new run, not submitted, of the steps that a run has not done, with its tags and more.

    Raises:
        NothingToRetry: if it has done them all.
    """
    try:
        return instance.create_reexecuted_run(
            request_context=workspace,
            parent_run=stopped,
            code_location=location,
            remote_job=job,
            strategy=ReexecutionStrategy.FROM_FAILURE,
            extra_tags=tags,
            use_parent_run_tags=True,
        )
    except DagsterInvalidSubsetError as error:
        raise NothingToRetry(str(error)) from error


def times_queued(instance: DagsterInstance, run_id: str) -> int:
    """How often a run was put into Dagster's queue."""
    queued = DagsterEventType.PIPELINE_ENQUEUED
    return len(instance.get_records_for_run(run_id, of_type=queued).records)


def iterate(
    daemon: QueuedRunCoordinatorDaemon,
    context: IWorkspaceProcessContext,
    shutdown: Event,
    pause: Callable[[], float],
) -> DaemonIterator:
    """The loop of Dagster's interval daemons, with pauses by the monotonic clock.

    Theirs are differences of the time of day: with that set back by hours, they last so long.

    Args:
        pause: seconds from the beginning of one pass to that of the next, asked between them.
    """
    while True:
        began = time.monotonic()
        yield SpanMarker.START_SPAN
        try:
            yield from daemon.run_iteration(context)
        except Exception:  # noqa: BLE001 -- so does Dagster's own loop
            error = error_info()
            _logger.error("Caught error:\n%s", error)
            yield error
        yield SpanMarker.END_SPAN
        while (left := began + pause() - time.monotonic()) > 0:
            shutdown.wait(min(left, 0.5))
            yield None
        yield None


def enqueue(instance: DagsterInstance, run: DagsterRun) -> None:
    """Put a run (back) into Dagster's queue, as its own coordinator does."""
    instance.report_dagster_event(DagsterEvent.job_enqueue(run), run_id=run.run_id)


def mark_starting(instance: DagsterInstance, run: DagsterRun) -> None:
    """Take a run out of Dagster's queue, to be launched."""
    starting = DagsterEvent(
        event_type_value=DagsterEventType.PIPELINE_STARTING.value, job_name=run.job_name
    )
    instance.report_dagster_event(starting, run_id=run.run_id)


def launch(
    instance: DagsterInstance, workspace: BaseWorkspaceRequestContext, run: DagsterRun
) -> None:
    """Hand a run that is marked as starting to the run launcher, whose errors are raised."""
    instance.run_launcher.launch_run(LaunchRunContext(dagster_run=run, workspace=workspace))


def error_info() -> Any:
    """The exception being handled, in the form a daemon yields to show it in the UI."""
    return serializable_error_info_from_exc_info(sys.exc_info())


SHARES_POOLS_READ = (
    "concurrency_info_by_key" in signature(GlobalOpConcurrencyLimitsCounter).parameters
)
"""Whether Dagster lets several countings of its pools share what was read of them; lately it does."""


class RunLimits:
    """Dagster's own limits (runs at once, tags, op pools) as counted in one pass.

    A run that is taken is counted, so that later runs see it.

    Args:
        pools_read: what has been read of pools in this pass; what is read here is added.
    """

    def __init__(
        self,
        instance: DagsterInstance,
        config: ConcurrencyConfig,
        in_progress: Sequence[RunRecord],
        candidates: Sequence[DagsterRun],
        pools_read: dict[str, Any],
    ):
        queue = config.run_queue_config
        assert queue is not None
        self._tags = TagConcurrencyLimitsCounter(
            queue.tag_concurrency_limits, [record.dagster_run for record in in_progress]
        )
        self._pools = None
        if queue.should_block_op_concurrency_limited_runs and any(
            run.run_op_concurrency for run in candidates
        ):
            shared: Any = {"concurrency_info_by_key": pools_read} if SHARES_POOLS_READ else {}
            try:
                self._pools = GlobalOpConcurrencyLimitsCounter(
                    instance,
                    candidates,
                    in_progress,
                    concurrency_keys=instance.event_log_storage.get_concurrency_keys(),
                    pool_limits=instance.event_log_storage.get_pool_limits(),
                    slot_count_offset=queue.op_concurrency_slot_buffer,
                    pool_granularity=config.pool_config.pool_granularity,
                    **shared,
                )
            except Exception:
                # As in Dagster's own daemon: where pools cannot be counted, they block nothing.
                _logger.exception("The pools of this Dagster instance could not be counted")

    def blocking(self, run: DagsterRun) -> str | None:
        """Which limit keeps the run from starting now, in words; None when none does."""
        if self._tags.is_blocked(run):
            return "a tag concurrency limit of this Dagster instance is reached"
        if self._pools is not None and self._pools.is_blocked(run):
            return "the slots of a Dagster concurrency pool that its steps need are taken"
        return None

    def take(self, run: DagsterRun) -> None:
        """Count the run as started."""
        self._tags.update_counters_with_launched_item(run)
        if self._pools is not None:
            self._pools.update_counters_with_launched_item(run)


class WithoutRuns:
    """A Dagster instance in whose queue some runs are not seen.

    Dagster's own dequeuing reads the queue page by page through ``get_runs``; with this in its hands
    it stays as it is and loads none of the runs that are gated elsewhere.

    Args:
        run_ids: those that are seen, oldest first.
        but_from: code locations whose runs are not seen either.
    """

    def __init__(
        self, instance: DagsterInstance, run_ids: Sequence[str], but_from: Collection[str]
    ):
        self._instance = instance
        self._run_ids = run_ids
        self._but_from = but_from

    def __getattr__(self, name: str) -> Any:
        return getattr(self._instance, name)

    def get_runs(
        self,
        filters: RunsFilter,
        cursor: str | None = None,
        limit: int = 100,
        ascending: bool = True,
    ) -> list[DagsterRun]:
        """The next ``limit`` of ``run_ids`` (oldest first) in the filter's statuses, after ``cursor``."""
        assert ascending, "Dagster reads its queue oldest first"
        start = self._run_ids.index(cursor) + 1 if cursor is not None else 0
        found: list[DagsterRun] = []
        for chunk in _chunks(self._run_ids[start:], max(limit, 100)):
            runs = self._instance.get_runs(
                filters=RunsFilter(run_ids=list(chunk), statuses=filters.statuses), ascending=True
            )
            found += [run for run in runs if location_of(run) not in self._but_from]
            if len(found) >= limit:
                break
        return found[:limit]


def _chunks(items: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
