"""Runs that are cancelled, deleted or stopped, at any moment of their lives."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from gate_stage import Stage

END = [Stage.cancel, Stage.delete]


def queue_two(stage: Stage) -> tuple[str, str]:
    """Two runs that need the whole pool, of which the first one starts."""
    first = stage.submit("first", team="red", pool="a100", gpus=8)
    second = stage.submit(team="red", pool="a100", gpus=8)
    return first, second


@pytest.mark.parametrize("end", END)
def test_a_run_that_ends_while_it_waits(stage: Stage, end: Callable[[Stage, str], None]) -> None:
    first, second = queue_two(stage)
    stage.pass_()
    end(stage, second)

    stage.pass_()
    stage.succeed(first)
    stage.pass_()

    assert stage.launched == [first]
    request = stage.request(second)
    assert request is not None and request.state == "cancelled"
    assert stage.history(second) == ["submitted", "cancelled"]
    stage.assert_nothing_lost()


@pytest.mark.parametrize("end", END)
def test_a_run_that_ends_before_the_daemon_has_seen_it(
    stage: Stage, end: Callable[[Stage, str], None]
) -> None:
    first, second = queue_two(stage)
    end(stage, first)

    stage.pass_()

    assert stage.launched == [second]
    stage.assert_nothing_lost()


@pytest.mark.parametrize("end", END)
def test_a_run_that_ends_between_its_grant_and_its_launch(
    stage: Stage, end: Callable[[Stage, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    from dagster_gpufair.gate.queue import gate

    first, second = queue_two(stage)
    launch_granted = gate.launch_granted

    def too_late(*args: Any) -> Any:
        end(stage, first)
        return launch_granted(*args)

    with monkeypatch.context() as ending:
        ending.setattr(gate, "launch_granted", too_late)
        stage.pass_()
    assert stage.launched == []
    stage.pass_()

    assert stage.launched == [second]
    assert stage.history(first) == ["submitted", "granted", "released"]
    stage.assert_nothing_lost()


@pytest.mark.parametrize("end", END)
def test_a_run_that_ends_while_its_launch_goes_on(
    stage: Stage, end: Callable[[Stage, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dagster_gpufair.gate.queue.daemon.LAUNCH_PATIENCE", 0.0)
    monkeypatch.setattr("dagster_gpufair.engine.launch_threads.HANGS_AFTER", -1.0)
    stage.launcher.hanging["first"] = threading.Event()
    first, second = queue_two(stage)
    stage.pass_()
    stage.launcher.await_tried(first)

    end(stage, first)
    stage.pass_()

    stage.launcher.await_launched(second)
    assert stage.holders() == {second}
    stage.launcher.hanging["first"].set()
    stage.launcher.await_launched(first)
    stage.pass_()
    assert stage.holders() == {second}


@pytest.mark.parametrize("end", END)
def test_a_launch_that_fails_after_its_run_has_ended(
    stage: Stage, end: Callable[[Stage, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = queue_two(stage)

    def fail(context: Any) -> None:
        end(stage, context.dagster_run.run_id)
        raise RuntimeError("no such image")

    with monkeypatch.context() as failing:
        failing.setattr(stage.launcher, "launch_run", fail)
        stage.pass_()
    stage.pass_()

    assert stage.launched == [second]
    if end is Stage.cancel:
        assert stage.status(first) == "CANCELED"


@pytest.mark.parametrize("end", END)
def test_a_run_that_ends_while_it_runs(stage: Stage, end: Callable[[Stage, str], None]) -> None:
    first, second = queue_two(stage)
    stage.pass_()
    stage.start(first)

    end(stage, first)
    stage.pass_()

    assert stage.launched == [first, second]
    assert stage.leases(first)[0].release_reason == (
        "canceled" if end is Stage.cancel else "deleted"
    )
    stage.assert_nothing_lost()


def test_a_submission_that_broke_off_keeps_no_gpu_from_others(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request is in the ledger, the run never came to Dagster's queue; also for a new daemon."""
    half = stage.create(team="red", pool="a100", gpus=8)
    with monkeypatch.context() as dying:
        dying.setattr("dagster.QueuedRunCoordinator.submit_run", lambda *_: None)
        stage.coordinator.submit_run(_context(stage, half))
    assert stage.status(half.run_id) == "NOT_STARTED"
    other = stage.submit(team="red", pool="a100", gpus=8)

    stage.pass_()

    assert stage.launched == [other]
    assert stage.history(half.run_id) == ["submitted"]
    assert "reason" not in stage.tags(half.run_id), "it may be in the middle of its submission"
    stage.pass_(at=time.time() + 11)
    assert stage.reason(half.run_id) == "environment"
    assert "it is not in Dagster's queue" in stage.events(half.run_id)
    stage.restart_daemon()
    stage.succeed(other)
    another = stage.submit(team="blue", pool="a100", gpus=8)
    stage.pass_()
    assert stage.launched == [other, another]

    stage.coordinator.submit_run(_context(stage, half))
    stage.succeed(another)
    stage.pass_()
    assert stage.launched == [other, another, half.run_id], "it starts once it is submitted"
    stage.assert_nothing_lost()


def _context(stage: Stage, run: Any) -> Any:
    from dagster import SubmitRunContext

    return SubmitRunContext(run, stage.context.create_request_context())


def test_a_run_is_told_before_its_max_duration_and_stopped_at_it(stage: Stage) -> None:
    """Its time counts from when its worker began, however long the GPUs were waiting for that."""
    now = time.time()
    run_id = stage.submit(team="red", pool="a100", gpus=4, max_duration="1h")
    free = stage.submit(team="red", pool="a100", gpus=4)
    stage.pass_(at=now - 170)
    stage.pass_(at=now - 1)
    stage.start(run_id)
    stage.start(free)
    began = stage.began(run_id)

    stage.pass_(at=began + 3299)
    assert "Save what it has" not in stage.events(run_id)
    for seconds in (3301, 3302, 3599):
        stage.pass_(at=began + seconds)
        assert stage.events(run_id).count("Save what it has") == 1
    assert stage.tags(run_id)["reason"].startswith("ends at ")
    assert stage.launcher.terminated == []

    stage.pass_(at=began + 3600)
    stage.launcher.await_terminated(run_id)
    assert "Stopped: it has run for the 1h of its tag gpufair/max_duration" in stage.events(run_id)
    assert stage.status(run_id) == "CANCELED"
    stage.pass_(at=began + 3601)
    assert stage.holders() == {free}
    assert stage.tags(run_id)["state"] == "released"


def test_a_bound_counts_nothing_before_the_worker_has_begun(stage: Stage) -> None:
    now = time.time()
    run_id = stage.submit(team="red", pool="a100", gpus=8, max_duration="10m")
    stage.pass_(at=now)

    for seconds in (540, 600, 5000):
        stage.pass_(at=now + seconds)

    assert stage.launcher.terminated == []
    assert "Save what it has" not in stage.events(run_id)


def test_a_run_that_does_not_stop_is_told_again_and_keeps_its_gpus(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dagster_gpufair.engine.tries.FIRST_PAUSE", 0.0)
    now = time.time()
    stage.launcher.deaf = True
    run_id = stage.submit(team="red", pool="a100", gpus=8, max_duration="10m")
    waits = stage.submit(team="red", pool="a100", gpus=8)
    stage.pass_(at=now)
    stage.start(run_id)

    for times in (1, 2, 3):
        stage.pass_(at=now + 660 + times)
        stage.launcher.await_terminated(run_id, times)

    stage.restart_daemon()
    stage.pass_(at=now + 700)
    stage.launcher.await_terminated(run_id, 4)
    assert stage.holders() == {run_id}
    assert stage.status(waits) == "QUEUED"
    assert stage.events(run_id).count("Stopped: it has run for the 10m") == 1


def test_a_backfill_does_not_go_before_the_same_teams_single_run(stage: Stage) -> None:
    """What is started from a source sends the rest of it back in the line, also after a restart."""
    now = time.time()
    backfill = {"dagster/backfill": "all-shards"}
    shards = [stage.submit(team="red", pool="t4", gpus=4, **backfill) for _ in range(3)]
    stage.pass_(at=now + 1800)
    single = stage.submit(team="red", pool="t4", gpus=4)
    assert stage.launched == shards[:1]

    stage.restart_daemon()
    stage.succeed(shards[0])
    stage.pass_(at=now + 3600)
    stage.succeed(single)
    stage.pass_(at=now + 7200)

    assert stage.launched == [shards[0], single, shards[1]]


def test_the_tags_of_a_run_say_what_became_of_it(stage: Stage) -> None:
    holds, waits = (stage.submit(team="red", pool="a100", gpus=8) for _ in range(2))
    stage.pass_()
    assert stage.tags(waits)["state"] == "waiting"
    assert "needs 8 a100" in stage.tags(waits)["why"]

    stage.cancel(waits)
    stage.start(holds)
    stage.succeed(holds)
    stage.pass_()
    assert stage.tags(waits)["state"] == "cancelled"
    assert stage.tags(holds)["state"] == "released"
    assert stage.tags(holds)["why"] == "the run ended: success"


def test_a_run_that_was_over_before_any_daemon_looked_waits_no_more(stage: Stage) -> None:
    now = time.time()
    stage.pass_(at=now)
    run_id = stage.submit(team="red", pool="a100", gpus=1)
    stage.instance.report_run_failed(stage.run(run_id))

    stage.pass_(at=now + 1)
    stage.pass_(at=now + 150)

    request = stage.request(run_id)
    assert request is not None
    assert request.state == "cancelled"
