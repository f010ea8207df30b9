"""Work that is stopped for other work: told, stopped after notice, and gone on with, once."""

from __future__ import annotations

import logging
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from dagster import RunsFilter
from dagster._core.execution.backfill import BulkActionStatus, PartitionBackfill
from dagster._daemon.backfill import execute_backfill_iteration
from gate_stage import Stage, code_server
from one_daemon import KILLED

from dagster_gpufair.gate.submission.tags import HIDDEN

OpenStage = Callable[..., Stage]
CODE = Path(__file__).with_name("stage_training.py")
GRACE = 60.0
POLICY = """
pools: {a100: {nodes: {n1: 4, n2: 4}}, t4: {gpus: 3}}
teams: {red: {quota: {a100: 8, t4: 3}}, blue: {}}
preemption: {mode: auto, grace: 1m, min_runtime: 0s}
"""


@pytest.fixture(scope="module")
def code() -> Iterator[int]:
    """The port of the code server of all these stages."""
    with code_server(CODE) as port:
        yield port


@pytest.fixture
def stage(open_stage: OpenStage, code: int) -> Stage:
    return open_stage(POLICY, code=code)


def borrowing(stage: Stage, gpus: int = 8, **tags: Any) -> str:
    """A run of blue's on red's GPUs, whose work goes on."""
    run_id = stage.launch(team="blue", pool="a100", gpus=gpus, **tags)
    stage.pass_()
    stage.start(run_id)
    stage.pass_()
    return run_id


def asking(stage: Stage, gpus: int = 8, **tags: Any) -> str:
    """A run of red's within its quota."""
    run_id = stage.launch(team="red", pool="a100", gpus=gpus, **tags)
    stage.pass_()
    return run_id


def let_the_notice_end(stage: Stage) -> None:
    stage.at = (stage.at or time.time()) + GRACE + 1
    stage.pass_()


def stop(stage: Stage, run_id: str) -> None:
    """The notice ends, and the run is told to end, which it does."""
    let_the_notice_end(stage)
    stage.launcher.await_terminated(run_id)
    stage.pass_()


def goes_on(stage: Stage, run_id: str) -> str:
    """The run that goes on with one that was stopped."""

    def is_queued() -> bool:
        request = stage.request(run_id)
        return request is not None and request.continues is None and request.run_id != run_id

    stage.pass_until(is_queued)
    request = stage.request(run_id)
    assert request is not None
    return request.run_id


def children(stage: Stage, run_id: str) -> list[str]:
    """All runs that were made to go on with a run, or to do it again."""
    everything = stage.instance.get_runs()
    return [run.run_id for run in everything if run.parent_run_id == run_id]


def test_it_is_told_stopped_and_gone_on_with(stage: Stage) -> None:
    stopped = borrowing(stage, tier="exploratory")
    asks = asking(stage)

    assert stage.tags(stopped)["reason"].startswith("stopped at ")
    assert f"{asks[:8]} (red, standard)" in stage.tags(stopped)["why"]
    assert stage.reason(asks) == "preempting"
    assert stage.launcher.terminated == []

    stop(stage, stopped)
    assert stage.tags(stopped)["state"] == "preempted"
    assert f"Stopped: {asks[:8]} (red, standard) takes back GPUs" in stage.events(stopped)
    assert "GPU-hours of work are lost" in stage.events(stopped)
    next_run = goes_on(stage, stopped)
    assert f"Run {next_run[:8]} goes on with the work of this run" in stage.events(stopped)
    assert f"goes on with the work of {stopped[:8]}, which was stopped" in stage.events(next_run)
    assert stage.holders() == {asks}
    assert stage.status(next_run) == "QUEUED"
    assert stage.run(next_run).tags["dagster/parent_run_id"] == stopped
    assert stage.tags(next_run)["tier"] == "exploratory"
    assert stage.history(stopped)[-2:] == ["stopping", "preempted"]
    request = stage.request(stopped)
    assert request is not None
    assert request.preempted == 1

    stage.start(asks)
    stage.succeed(asks)
    stage.pass_until(lambda: stage.holders() == {next_run})
    stage.start(next_run)
    stage.succeed(next_run)
    stage.pass_until(lambda: not stage.holders())
    assert children(stage, stopped) == [next_run]
    stage.assert_nothing_lost()


def test_without_a_folder_for_notices_it_is_stopped_at_its_deadline(
    open_stage: OpenStage, code: int, tmp_path: Path
) -> None:
    """The folder cannot be made: its page tells of the notice, its code is not told."""
    (tmp_path / "a_file").touch()
    nowhere = POLICY.replace("mode: auto", f"folder: {tmp_path}/a_file/gpufair, mode: auto")
    stage = open_stage(nowhere, code=code)
    stopped = borrowing(stage)
    asks = asking(stage)
    assert stage.tags(stopped)["reason"].startswith("stopped at ")
    stop(stage, stopped)
    next_run = goes_on(stage, stopped)
    stage.pass_until(lambda: stage.holders() == {asks})
    assert stage.status(next_run) == "QUEUED"
    assert any("may not see its notice" in said for said in stage.log.said(logging.ERROR))


def test_it_goes_on_if_nobody_needs_its_gpus_any_more(stage: Stage) -> None:
    spared = borrowing(stage)
    asks = asking(stage)
    stage.cancel(asks)
    stage.pass_()
    assert stage.tags(spared)["reason"].startswith("goes on")
    let_the_notice_end(stage)
    stage.pass_()
    assert stage.status(spared) == "STARTED"
    assert stage.launcher.terminated == []
    assert stage.holders() == {spared}


@pytest.mark.parametrize("how", ["succeed", "cancel", "fail", "delete"])
def test_what_ends_in_its_notice_is_simply_over(stage: Stage, how: str) -> None:
    over = borrowing(stage)
    asks = asking(stage)
    end(stage, over, how)
    stage.pass_until(lambda: stage.holders() == {asks})
    let_the_notice_end(stage)
    assert stage.launcher.terminated == ([over] if how == "cancel" else [])
    assert children(stage, over) == []
    assert "preempted" not in stage.history(over)


@pytest.mark.parametrize("how", ["succeed", "delete"])
def test_what_ends_while_it_is_stopped_is_over_and_as_if_nobody_had_stopped_it(
    stage: Stage, how: str
) -> None:
    over = borrowing(stage, **{"dagster/max_retries": "2"})
    asks = asking(stage)
    stage.launcher.deaf = True
    let_the_notice_end(stage)
    stage.launcher.await_terminated(over)
    assert stage.run(over).tags["dagster/max_retries"] == "0"
    end(stage, over, how)
    stage.pass_until(lambda: stage.holders() == {asks})
    if how == "succeed":
        assert stage.run(over).tags["dagster/max_retries"] == "2"
    assert children(stage, over) == []


def test_what_does_not_end_keeps_its_gpus_and_another_is_stopped(stage: Stage) -> None:
    deaf = borrowing(stage, gpus=4, tier="exploratory")
    other = borrowing(stage, gpus=4)
    asks = asking(stage, gpus=4)
    stage.launcher.deaf = True
    let_the_notice_end(stage)
    stage.launcher.await_terminated(deaf)
    stage.pass_()
    assert stage.holders() == {deaf, other}
    assert stage.reason(asks) == "preempting"

    stage.launcher.deaf = False
    stage.at = (stage.at or 0) + GRACE + 1
    stage.pass_()
    assert stage.tags(other)["reason"].startswith("stopped at ")
    stop(stage, other)
    stage.pass_until(lambda: asks in stage.holders())
    assert stage.holders() == {deaf, asks}


def test_what_is_still_starting_is_not_stopped(stage: Stage) -> None:
    starting = stage.launch(team="blue", pool="a100", gpus=8)
    stage.pass_()
    asks = asking(stage)
    assert stage.reason(asks) != "preempting"
    stage.start(starting)
    stage.pass_()
    stage.pass_()
    assert stage.reason(asks) == "preempting"


def test_it_does_not_use_up_a_retry(open_stage: OpenStage, code: int) -> None:
    stage = open_stage(POLICY, code=code, run_retries={"enabled": True, "max_retries": 1})
    of_its_own, of_all = (
        borrowing(stage, 4, **tags) for tags in ({"dagster/max_retries": "3"}, {})
    )
    asking(stage)
    let_the_notice_end(stage)
    for stopped, most in ((of_its_own, "4"), (of_all, "2")):
        stage.launcher.await_terminated(stopped)
        next_run = stage.run(goes_on(stage, stopped))
        assert next_run.tags["dagster/max_retries"] == most
        assert next_run.tags[HIDDEN] == ""


def test_stopped_twice_it_is_the_same_request(stage: Stage) -> None:
    first = borrowing(stage)
    asks = asking(stage)
    stop(stage, first)
    second = goes_on(stage, first)
    stage.start(asks)
    stage.succeed(asks)
    stage.pass_until(lambda: stage.holders() == {second})
    stage.start(second)
    stage.pass_()
    asking(stage)
    let_the_notice_end(stage)
    stage.launcher.await_terminated(second)
    stage.pass_until(
        lambda: (r := stage.request(first)) is not None and r.run_id not in (first, second)
    )
    request = stage.request(first)
    assert request is not None
    assert request.preempted == 2
    assert children(stage, second) == [request.run_id]
    assert children(stage, first) == [second]


def test_it_can_be_cancelled_while_it_waits_again(stage: Stage) -> None:
    stopped = borrowing(stage)
    asks = asking(stage)
    stop(stage, stopped)
    next_run = goes_on(stage, stopped)
    stage.cancel(next_run)
    stage.pass_()
    request = stage.request(stopped)
    assert request is not None
    assert request.state == "cancelled"
    assert stage.tags(next_run)["state"] == "cancelled"
    assert stage.holders() == {asks}


def test_a_job_that_is_gone_cannot_go_on_and_that_is_said(stage: Stage) -> None:
    stopped = borrowing(stage)
    asks = asking(stage)
    let_the_notice_end(stage)
    stage.launcher.await_terminated(stopped)
    stage.delete(stopped)
    stage.pass_until(lambda: stage.holders() == {asks})
    assert children(stage, stopped) == []


def test_a_backfill_sees_nothing_of_it(stage: Stage) -> None:
    backfill = launch_backfill(stage)
    three = in_backfill(stage)
    assert len(three) == 3
    start_all(stage, three)
    asks = stage.launch(team="red", pool="t4", gpus=2)
    stage.pass_()
    let_the_notice_end(stage)
    stage.pass_until(lambda: stage.holders() >= {asks})
    stopped = [run_id for run_id in three if stage.status(run_id) == "CANCELED"]
    assert len(stopped) == 2
    for run_id in three:
        if run_id not in stopped:
            stage.succeed(run_id)
    for run_id in stopped:
        look_after_backfills(stage)
        assert state_of(stage, backfill) == BulkActionStatus.REQUESTED
        goes_on(stage, run_id)
    look_after_backfills(stage)
    assert state_of(stage, backfill) == BulkActionStatus.REQUESTED
    stage.start(asks)
    stage.succeed(asks)
    stage.pass_until(lambda: asks not in stage.holders() and len(stage.holders()) == 2)
    start_all(stage, stage.holders())
    for run_id in list(stage.holders()):
        stage.succeed(run_id)
    look_after_backfills(stage)
    assert state_of(stage, backfill) == BulkActionStatus.COMPLETED_SUCCESS
    assert len(in_backfill(stage)) == 3, (
        "those that were stopped, and what stood in, are gone from it"
    )


def test_killed_while_it_is_stopped_and_gone_on_with_the_next_daemon_finishes_that(
    open_stage: OpenStage, code: int, tmp_path: Path
) -> None:
    """Daemons as processes, killed before one of their writes."""
    # Launches bear the real time, and these passes run ahead of it.
    patient = {"start_timeout_seconds": 100_000}
    stage = open_stage(POLICY, code=code, run_monitoring=patient)
    for moment in count(3, step=11):
        stopped = borrowing(stage)
        asks = asking(stage)
        stage.daemon._gate.close()
        stage.at = (stage.at or time.time()) + GRACE + 1
        over = is_over_when_killed_at(tmp_path, code, stage.at, moment)
        stage.at += 60
        stage.daemon = stage.new_daemon()
        stage.pass_()
        next_run = goes_on(stage, stopped)
        stage.pass_until(lambda asks=asks: stage.holders() == {asks})
        assert children(stage, stopped) == [next_run]
        stage.finish_all()
        stage.assert_nothing_lost()
        if over:
            break
    assert moment > 10


def is_over_when_killed_at(home: Path, code: int, at: float, moment: int) -> bool:
    """A daemon that stops runs and has them gone on with; whether it had done so before it was killed."""
    script = Path(__file__).with_name("one_daemon.py")
    arguments = [str(home), str(code), str(at), "8", str(moment)]
    said = home / "one_daemon.txt"
    with said.open("wb") as output:
        daemon = subprocess.Popen(
            [sys.executable, str(script), *arguments], stdout=output, stderr=output
        )
    ended_as = daemon.wait(timeout=120)
    assert ended_as in (0, KILLED), said.read_text()
    return ended_as == 0


def end(stage: Stage, run_id: str, how: str) -> None:
    """As its worker, a user or Dagster ends it."""
    if how == "fail":
        stage.instance.report_run_failed(stage.run(run_id))
    else:
        {"succeed": stage.succeed, "cancel": stage.cancel, "delete": stage.delete}[how](run_id)


def launch_backfill(stage: Stage) -> str:
    """A backfill of three partitions, whose runs have GPUs."""
    location = stage.context.create_request_context().get_code_location("jobs")
    partitions = location.get_repository("__repository__").get_partition_set("daily_partition_set")
    stage.instance.add_backfill(
        PartitionBackfill(
            backfill_id="fill",
            partition_set_origin=partitions.get_remote_origin(),
            status=BulkActionStatus.REQUESTED,
            partition_names=["1", "2", "3"],
            from_failure=False,
            reexecution_steps=None,
            tags={},
            backfill_timestamp=time.time(),
        )
    )
    look_after_backfills(stage)
    stage.pass_()
    return "fill"


def look_after_backfills(stage: Stage) -> None:
    """What Dagster's backfill daemon does now and then."""
    logger = logging.getLogger("backfills")
    assert [error for error in execute_backfill_iteration(stage.context, logger) if error] == []


def in_backfill(stage: Stage) -> list[str]:
    found = stage.instance.get_runs(RunsFilter(tags={"dagster/backfill": "fill"}))
    return [run.run_id for run in found]


def state_of(stage: Stage, backfill: str) -> BulkActionStatus:
    found = stage.instance.get_backfill(backfill)
    assert found is not None
    return found.status


def start_all(stage: Stage, run_ids: Any) -> None:
    for run_id in run_ids:
        stage.start(run_id)
    stage.pass_()
