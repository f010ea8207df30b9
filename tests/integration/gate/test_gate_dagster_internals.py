"""The private parts of Dagster that the gate relies on, each by its name.

A Dagster release that moves one fails here, saying which, and not somewhere in a queue of runs.
"""

from __future__ import annotations

import inspect
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast, get_type_hints

import dagster as dg
import pytest
from dagster import DagsterInstance, DagsterRun, DagsterRunStatus, RunsFilter
from dagster._core.errors import DagsterCodeLocationNotFoundError, DagsterUserCodeUnreachableError
from dagster._core.events import EngineEventData
from dagster._core.execution.compute_logs import execute_posix_tail
from dagster._core.storage import tags
from dagster._core.test_utils import create_run_for_test, in_process_test_workspace
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin
from dagster._daemon import controller
from dagster._daemon.run_coordinator.queued_run_coordinator_daemon import (
    QueuedRunCoordinatorDaemon,
)
from dagster._grpc.__generated__ import dagster_api_pb2
from dagster._grpc.client import DagsterGrpcClient
from gate_stage import Stage, stage_at

from dagster_gpufair.gate import dagster_internals as internals
from dagster_gpufair.gate.queue.daemon import GpuFairQueueDaemon

DAEMON = QueuedRunCoordinatorDaemon


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    home = tmp_path_factory.mktemp("internals")
    limits = [{"key": "org/license", "limit": 1}]
    concurrency = {"runs": {"tag_concurrency_limits": limits}}
    with stage_at(home, {"sqlite": {"base_dir": str(home)}}, concurrency=concurrency) as stage:
        yield stage


@pytest.fixture(scope="module")
def instance(stage: Stage) -> DagsterInstance:
    return stage.instance


@pytest.fixture(scope="module")
def workspace(instance: DagsterInstance, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    code = tmp_path_factory.mktemp("code") / "code.py"
    code.write_text(
        "import dagster as dg\n"
        "@dg.asset(tags={'gpufair/gpus': '2'})\n"
        "def model(): pass\n"
        "@dg.asset(deps=[model])\n"
        "def report(): pass\n"
        "defs = dg.Definitions([model, report], jobs=[dg.define_asset_job('train', '*')])\n"
    )
    with in_process_test_workspace(instance, LoadableTargetOrigin(python_file=str(code))) as found:
        yield found


@pytest.mark.parametrize(
    ("what", "takes"),
    [
        (DAEMON.__init__, {"interval_seconds"}),
        (DAEMON.run_iteration, {"workspace_process_context", "fixed_iteration_time"}),
        (
            DAEMON._get_runs_to_dequeue,
            {"instance", "concurrency_config", "fixed_iteration_time"},
        ),
        (
            DAEMON._dequeue_run,
            {"instance", "workspace", "run", "concurrency_config", "fixed_iteration_time"},
        ),
        (DAEMON._get_in_progress_run_records, {"instance"}),
        (DAEMON.__exit__, set()),
        (internals.LaunchRunContext, {"dagster_run", "workspace"}),
        (
            internals.TagConcurrencyLimitsCounter,
            {"tag_concurrency_limits", "in_progress_tagged_items"},
        ),
        (internals.TagConcurrencyLimitsCounter.is_blocked, {"item"}),
        (internals.TagConcurrencyLimitsCounter.update_counters_with_launched_item, {"item"}),
        (
            internals.GlobalOpConcurrencyLimitsCounter,
            {
                "concurrency_keys",
                "pool_limits",
                "slot_count_offset",
                "pool_granularity",
            },
        ),
        (internals.GlobalOpConcurrencyLimitsCounter.is_blocked, {"run"}),
        (internals.GlobalOpConcurrencyLimitsCounter.update_counters_with_launched_item, {"run"}),
        (dg.QueuedRunCoordinator.submit_run, {"context"}),
        (dg.QueuedRunCoordinator.cancel_run, {"run_id"}),
        (dg.QueuedRunCoordinator.from_config_value, {"inst_data", "config_value"}),
        (dg.QueuedRunCoordinator.register_instance, {"instance"}),
        (dg.SubmitRunContext, {"dagster_run", "workspace"}),
        (DagsterInstance.get_records_for_run, {"run_id", "of_type"}),
        (DagsterInstance.get_run_ids, {"filters"}),
        (DagsterInstance.report_run_failed, {"dagster_run", "message"}),
        (
            DagsterInstance.create_reexecuted_run,
            {
                *("request_context", "parent_run", "code_location", "remote_job", "strategy"),
                *("extra_tags", "use_parent_run_tags"),
            },
        ),
        (DagsterInstance.add_run_tags, {"run_id", "new_tags"}),
        (
            internals.JobSubsetSelector,
            {
                *("location_name", "repository_name", "job_name", "op_selection"),
                *("asset_selection", "asset_check_selection"),
            },
        ),
    ],
    ids=lambda given: getattr(given, "__qualname__", ""),
)
def test_it_takes_what_it_is_given(what: Callable[..., Any], takes: set[str]) -> None:
    name = what.__qualname__
    missing = takes - inspect.signature(what).parameters.keys()
    assert not missing, f"{name} of Dagster {dg.__version__} no longer takes {missing}"


@pytest.mark.parametrize(
    "field",
    [
        "max_concurrent_runs",
        "tag_concurrency_limits",
        "max_user_code_failure_retries",
        "user_code_failure_retry_delay",
        "should_block_op_concurrency_limited_runs",
        "op_concurrency_slot_buffer",
    ],
)
def test_the_run_queue_config_has(field: str) -> None:
    assert field in internals.RunQueueConfig._fields, (
        f"RunQueueConfig.{field} is gone from Dagster {dg.__version__}"
    )


@pytest.mark.parametrize(
    ("ours", "value"),
    [
        (internals.BACKFILL_ID_TAG, "dagster/backfill"),
        (internals.MAX_RETRIES_TAG, "dagster/max_retries"),
        (internals.PRIORITY_TAG, "dagster/priority"),
        (internals.USER_TAG, "user"),
        (internals.WILL_RETRY_TAG, "dagster/will_retry"),
    ],
)
def test_dagsters_tags_are_called(ours: str, value: str) -> None:
    assert ours == value, f"Dagster {dg.__version__} has renamed its tag {value}"


def test_dagsters_settings_of_the_coordinator_are_properties() -> None:
    for name in ("dequeue_use_threads", "dequeue_num_workers"):
        assert isinstance(getattr(dg.QueuedRunCoordinator, name), property), name
    for name in ("run_retries_enabled", "run_retries_max_retries", "root_directory"):
        assert isinstance(getattr(DagsterInstance, name), property), name


def test_the_statuses_of_unfinished_runs() -> None:
    known = {"QUEUED", "NOT_STARTED", "MANAGED", "STARTING", "STARTED", "CANCELING", "SUSPENDED"}
    found = {status.value for status in internals.UNFINISHED_RUN_STATUSES}
    assert found <= known, "a new status that is not finished: may a run with it hold GPUs?"
    assert found >= known - {"SUSPENDED"}, "a run with such a status would lose its GPUs"


def test_the_controller_starts_the_daemon_that_is_put_there(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a new process, in which nothing has asked the instance for its coordinator before."""
    monkeypatch.setattr(controller, "QueuedRunCoordinatorDaemon", DAEMON)
    with DagsterInstance.from_config(stage.instance.root_directory) as instance:
        daemons = controller.create_daemons_from_instance(instance)

    types = {type(daemon) for daemon in daemons if isinstance(daemon, DAEMON)}
    assert types == {GpuFairQueueDaemon}, (
        "dagster._daemon.controller no longer looks QueuedRunCoordinatorDaemon up when it starts "
        "its daemons, after the coordinator has been loaded: Dagster starts its own"
    )


def test_the_iteration_of_a_daemon_yields_errors_in_this_form() -> None:
    try:
        raise ValueError("what is wrong")
    except ValueError:
        assert "what is wrong" in internals.error_info().message
    assert get_type_hints(DAEMON.run_iteration)["return"] == internals.DaemonIterator


def test_the_settings_of_the_instance_are_those_that_its_limits_are_read_from(
    instance: DagsterInstance,
) -> None:
    """The tag limit of 0 is put into them, where they replace the coordinator's."""
    config = instance.get_concurrency_config()
    assert config.run_queue_config is not None
    limits = config.run_queue_config.tag_concurrency_limits
    closed = [{"key": tag, "limit": 0} for tag in ("gpufair/gpus", "gpufair/state")]
    assert limits == [{"key": "org/license", "limit": 1}, *closed], (
        "DagsterInstance.get_settings('concurrency') is no longer what get_concurrency_config reads, "
        "so Dagster's own daemon would start GPU runs"
    )
    opened = internals.open_tag_limits(config, ("gpufair/gpus", "gpufair/state")).run_queue_config
    assert opened is not None
    assert opened.tag_concurrency_limits == [{"key": "org/license", "limit": 1}]


def test_dagsters_daemon_reads_its_queue_by_get_runs_alone(stage: Stage) -> None:
    """So that another can be given into its hands, in which some runs are not seen."""
    instance = stage.instance
    seen = [stage.enqueue() for _ in range(5)]
    stage.enqueue()
    config = internals.open_tag_limits(instance.get_concurrency_config(), ("gpufair/gpus",))
    queue = internals.WithoutRuns(instance, seen, but_from=())
    daemon: Any = DAEMON(interval_seconds=1, page_size=2)

    picked = daemon._get_runs_to_dequeue(queue, config, fixed_iteration_time=None)

    assert [run.run_id for run in picked] == seen, (
        "QueuedRunCoordinatorDaemon._get_runs_to_dequeue no longer reads the queue page by page "
        "through get_runs(filter, cursor=, limit=, ascending=)"
    )


def test_a_location_whose_runs_are_not_seen(stage: Stage) -> None:
    hangs, other = stage.enqueue(location="hangs"), stage.enqueue()
    queue = internals.WithoutRuns(stage.instance, [hangs, other], but_from={"hangs"})

    (seen,) = queue.get_runs(RunsFilter(statuses=[DagsterRunStatus.QUEUED]))

    assert seen.run_id == other
    assert internals.location_of(seen) == "jobs"


def test_the_pools_of_a_run_are_counted(stage: Stage) -> None:
    """`run_op_concurrency` says which a run needs, the storage how many slots there are."""
    stage.instance.event_log_storage.set_concurrency_slots("warehouse", 1)
    first, second = (stage.create(pools=["warehouse"]) for _ in range(2))
    config = stage.instance.get_concurrency_config()
    limits = internals.RunLimits(stage.instance, config, [], [first, second], {})

    assert limits.blocking(first) is None
    limits.take(first)
    assert limits.blocking(second) == (
        "the slots of a Dagster concurrency pool that its steps need are taken"
    )


def test_a_workspace_tells_which_locations_could_not_be_loaded(workspace: Any) -> None:
    entries = workspace.get_code_location_entries()
    assert entries, "BaseWorkspaceRequestContext.get_code_location_entries() has none"
    assert all(entry.load_error is None for entry in entries.values())
    assert internals.location_errors(workspace) == {}

    broken = SimpleNamespace(load_error=SimpleNamespace(message="no module"))
    silent = SimpleNamespace(load_error=SimpleNamespace(message=""))
    fake: Any = SimpleNamespace(
        get_code_location_entries=lambda: {**entries, "broken": broken, "silent": silent}
    )
    assert internals.location_errors(fake) == {"broken": "no module", "silent": "no message"}


def test_a_repository_knows_the_tags_of_its_assets(stage: Stage, workspace: Any) -> None:
    (here,) = workspace.code_location_names
    of_a_job = stage.create("train", here)
    of_assets = stage.create("__ASSET_JOB", here, assets=["model", "elsewhere"])

    for run in (of_a_job, of_assets):
        assert internals.asset_tags_of(workspace, run)["model"] == {"gpufair/gpus": "2"}, (
            "RemoteRepository.asset_graph no longer tells the tags of assets, or the assets of a job"
        )
    for run in (
        stage.create("train", "another"),
        stage.create("train", here, repository="another"),
        create_run_for_test(stage.instance, job_name="train"),
    ):
        assert internals.asset_tags_of(workspace, run) == {}


def test_a_run_goes_back_into_the_queue_and_out_of_it(stage: Stage) -> None:
    instance, run = stage.instance, stage.create()

    for step, status in [
        (internals.enqueue, DagsterRunStatus.QUEUED),
        (internals.mark_starting, DagsterRunStatus.STARTING),
        (internals.enqueue, DagsterRunStatus.QUEUED),
    ]:
        step(instance, run)
        found = instance.get_run_by_id(run.run_id)
        assert found is not None and found.status == status, step.__name__
    queued_events = instance.get_records_for_run(
        run.run_id, of_type=dg.DagsterEventType.PIPELINE_ENQUEUED
    )
    assert len(queued_events.records) == 2


def test_the_launcher_is_handed_the_run(instance: DagsterInstance, workspace: Any) -> None:
    handed: list[Any] = []
    launcher: Any = SimpleNamespace(run_launcher=SimpleNamespace(launch_run=handed.append))
    run = create_run_for_test(instance)

    internals.launch(launcher, workspace, run)

    (context,) = handed
    assert (context.dagster_run, context.workspace) == (run, workspace)


def test_a_run_without_an_origin_has_no_code_location(instance: DagsterInstance) -> None:
    assert internals.location_of(create_run_for_test(instance)) is None
    assert "remote_job_origin" in DagsterRun._fields


def test_retries_are_settled_by_this_tag_when_a_run_fails() -> None:
    assert tags.WILL_RETRY_TAG == "dagster/will_retry"


def test_the_errors_of_an_unreachable_code_location() -> None:
    names = {error.__name__ for error in internals.ENVIRONMENT_ERRORS}
    assert names == {
        "DagsterUserCodeUnreachableError",
        "DagsterCodeLocationLoadError",
        "DagsterCodeLocationNotFoundError",
    }
    assert all(issubclass(error, dg.DagsterError) for error in internals.ENVIRONMENT_ERRORS)


def test_the_code_of_a_run_is_compared_with_that_of_its_location(
    stage: Stage, workspace: Any
) -> None:
    (here,) = workspace.code_location_names
    location = workspace.get_code_location(here)
    other_server_and_code = stage.create("train", here)
    code = location.get_repository_python_origin("__repository__").get_job_origin("train")
    same_code = other_server_and_code._replace(job_code_origin=code)
    origin = location.get_repository("__repository__").get_remote_origin().get_job_origin("train")
    same_server = other_server_and_code._replace(remote_job_origin=origin)
    no_code = other_server_and_code._replace(job_code_origin=None)

    assert [
        internals.is_foreign(workspace, run)
        for run in (other_server_and_code, no_code, same_code, same_server)
    ] == [True, True, False, False]
    for run in (stage.create("train", "another"), create_run_for_test(stage.instance)):
        assert not internals.is_foreign(workspace, run), "nobody can tell"


def test_an_event_log_names_the_processes_of_a_run(stage: Stage) -> None:
    run = stage.run(stage.submit())
    started = EngineEventData.in_process(4711)
    stage.instance.report_engine_event("Started process for run (pid: 4711).", run, started)
    stage.instance.report_engine_event("It says nothing of a process.", run)

    ((pid, at),) = internals.processes_in_log(stage.instance, run.run_id)

    assert pid == 4711
    assert abs(at - time.time()) < 60


@pytest.mark.skipif(os.name != "posix", reason="elsewhere the copies are made otherwise")
def test_the_processes_that_copy_output_are_known_by_their_command(tmp_path: Path) -> None:
    with (
        (tmp_path / "copy").open("w") as copy,
        execute_posix_tail(str(tmp_path / "log"), copy) as ids,
    ):
        assert len(ids) == 2
        for pid in ids:
            # A new process has its parent's command line for a moment.
            deadline = time.monotonic() + 30
            while not internals.copies_output(Path(f"/proc/{pid}/cmdline").read_text().split("\0")):
                assert time.monotonic() < deadline
                time.sleep(0.01)
    assert not internals.copies_output(["python", "train.py"])
    assert not internals.copies_output(["tail", "-f", "/var/log/messages"])


@pytest.mark.parametrize(
    ("port", "surely_not"), [("closed", True), ("silent", False)], ids=["refused", "no answer"]
)
def test_what_did_not_reach_the_code_server_is_told_from_what_was_not_answered(
    port: str, surely_not: bool
) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        number = silent.getsockname()[1]
        if port == "silent":
            # It takes connections, and nobody ever answers.
            silent.listen()
        client = DagsterGrpcClient(host="127.0.0.1", port=number)
        with pytest.raises(DagsterUserCodeUnreachableError) as raised:
            client._query("Ping", dagster_api_pb2.PingRequest, timeout=2, echo="")
    assert internals.was_surely_not_sent(raised.value) is surely_not
    assert internals.was_surely_not_sent(DagsterCodeLocationNotFoundError("gone"))


def test_a_stopped_run_is_gone_on_with_from_its_job_as_it_is_now(
    instance: DagsterInstance, workspace: Any
) -> None:
    """The steps that it has not done, with its tags, in a run that is not submitted."""
    (location,) = workspace.code_location_names
    job = workspace.get_code_location(location).get_repository("__repository__").get_all_jobs()[0]
    made = instance.create_run(
        job_name=job.name,
        run_id=None,
        run_config={},
        status=dg.DagsterRunStatus.CANCELED,
        tags={"mine": "1"},
        root_run_id=None,
        parent_run_id=None,
        step_keys_to_execute=None,
        execution_plan_snapshot=workspace.get_code_location(location)
        .get_execution_plan(job, {}, step_keys_to_execute=None, known_state=None)
        .execution_plan_snapshot,
        job_snapshot=job.job_snapshot,
        parent_job_snapshot=job.parent_job_snapshot,
        asset_selection=None,
        asset_check_selection=None,
        resolved_op_selection=None,
        op_selection=None,
        remote_job_origin=job.get_remote_origin(),
        job_code_origin=job.get_python_origin(),
        asset_graph=None,
    )
    found_location, found = internals.job_of(workspace, made)
    assert found.name == job.name
    again = internals.from_failure(
        instance, workspace, found_location, found, made, {"gpufair/continues": "x/1"}
    )
    assert again.parent_run_id == made.run_id
    assert again.status == dg.DagsterRunStatus.NOT_STARTED
    assert (again.tags["mine"], again.tags["gpufair/continues"]) == ("1", "x/1")
    with pytest.raises(LookupError, match="has no job gone any more"):
        internals.job_of(workspace, made._replace(job_name="gone"))


def test_what_is_made_from_the_assets_of_a_run_is_known(stage: Stage, workspace: Any) -> None:
    (location,) = workspace.code_location_names
    makes = stage.run(stage.create(location=location, assets=["model"]).run_id)
    assert internals.downstream_of(workspace, makes) == ["report"]
    assert internals.downstream_of(workspace, stage.run(stage.create().run_id)) == []


def test_the_loop_of_a_daemon_waits_by_a_clock_that_nobody_sets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Dagster's own would wait for two hours after the time of day was set back by two."""
    passes: list[float] = []
    now = time.time

    class Daemon:
        def run_iteration(self, _: Any) -> Iterator[None]:
            passes.append(now())
            monkeypatch.setattr(time, "time", lambda: now() - 7200)
            yield None

    daemon: Any = Daemon()
    steps = internals.iterate(daemon, cast(Any, None), threading.Event(), lambda: 0.0)
    while len(passes) < 3:
        next(steps)
