"""What is broken around a run: its code location, its launch. It is told apart and holds up no other."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
from gate_stage import Stage

OpenStage = Callable[..., Stage]
NOW = time.time()


def test_an_unreachable_code_location_is_tried_again_after_growing_pauses(
    open_stage: OpenStage,
) -> None:
    stage = open_stage(max_user_code_failure_retries=9)
    stage.launcher.unreachable.add("gone")
    waits = stage.submit(location="gone", team="red", pool="a100", gpus=8)
    tries = stage.launcher.tried

    stage.pass_(at=NOW)
    assert tries == [waits]
    assert stage.status(waits) == "QUEUED"
    other = stage.submit(team="blue", pool="a100", gpus=4)
    cpu = stage.submit()
    stage.pass_(at=NOW + 1)

    assert stage.launched == [other, cpu], "the GPUs were given back, and others start"
    assert stage.reason(waits) == "environment"
    assert "'gone' could not be reached" in stage.events(waits)
    assert "UNAVAILABLE). Tried again at" in stage.events(waits)
    assert stage.history(waits) == ["submitted", "granted", "recalled"]
    stage.succeed(other)
    for seconds, times in [
        (59, 1),
        (62, 2),
        (63, 2),
        (181, 2),
        (183, 3),
        (184, 3),
        (422, 3),
        (424, 4),
    ]:
        stage.pass_(at=NOW + seconds)
        assert tries.count(waits) == times, f"after {seconds} s"

    stage.launcher.unreachable.clear()
    stage.pass_(at=NOW + 427)
    stage.pass_(at=NOW + 910)
    assert stage.launched == [other, cpu, waits]
    assert stage.tags(waits)["state"] == "granted"
    stage.pass_(at=NOW + 911)
    stage.launcher.unreachable.add("gone")
    stage.succeed(waits)
    again = stage.submit(location="gone", team="red", pool="a100", gpus=8)
    stage.pass_(at=NOW + 912)
    stage.pass_(at=NOW + 913)
    stage.pass_(at=NOW + 974)
    assert tries.count(again) == 2, "once it was reached, pauses are short again"
    stage.assert_nothing_lost()


def test_a_run_that_waits_again_for_the_same_reason_says_so_again(open_stage: OpenStage) -> None:
    stage = open_stage(max_user_code_failure_retries=9)
    stage.launcher.unreachable.add("gone")
    waits = stage.submit(location="gone", team="red", pool="a100", gpus=8)

    for seconds in (0, 1, 62, 63):
        stage.pass_(at=NOW + seconds)

    assert stage.tags(waits)["state"] == "waiting"
    assert stage.reason(waits) == "environment"


def test_the_retries_that_dagster_is_set_to_are_kept(open_stage: OpenStage) -> None:
    stage = open_stage(max_user_code_failure_retries=1, user_code_failure_retry_delay=5)
    stage.launcher.unreachable.add("gone")
    run_id = stage.submit(location="gone", team="red", pool="a100", gpus=8)

    for seconds in (0, 1, 7):
        stage.pass_(at=NOW + seconds)

    assert stage.launcher.tried == [run_id, run_id]
    assert stage.status(run_id) == "FAILURE"
    assert (
        "could not be reached in 2 tries (max_user_code_failure_retries: 1): Could not reach"
        in (stage.events(run_id))
    )
    stage.pass_(at=NOW + 8)
    assert stage.holders() == set()


def test_a_code_location_that_cannot_be_loaded(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = {"broken": "No module named 'torch'\nTraceback ..."}
    monkeypatch.setattr("dagster_gpufair.gate.queue.gate.location_errors", lambda _: errors)
    waits = stage.submit(location="broken", team="red", pool="a100", gpus=4)
    other = stage.submit(team="red", pool="a100", gpus=4)

    stage.pass_()

    assert stage.launched == [other]
    assert stage.reason(waits) == "environment"
    assert "Code location 'broken' cannot be loaded (No module named 'torch')." in (
        stage.events(waits)
    )
    assert stage.history(waits) == ["submitted"]
    errors.clear()
    stage.pass_()
    assert stage.launched == [other, waits]


def test_a_launch_that_fails_fails_its_run_and_frees_the_gpus(stage: Stage) -> None:
    stage.launcher.broken.add("broken")
    broken = stage.submit("broken", team="red", pool="a100", gpus=8)

    stage.pass_()
    waits = stage.submit(team="red", pool="a100", gpus=8)
    stage.pass_()

    assert stage.status(broken) == "FAILURE"
    assert "it could not be launched: RuntimeError: image not found" in stage.events(broken)
    assert stage.history(broken) == ["submitted", "granted", "released"]
    assert stage.launched == [waits]
    assert stage.launcher.tried == [broken, waits]


@pytest.fixture
def hangs_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A launch counts as hanging from its beginning, and a pass does not wait for it."""
    monkeypatch.setattr("dagster_gpufair.engine.launch_threads.HANGS_AFTER", -1.0)
    monkeypatch.setattr("dagster_gpufair.gate.queue.daemon.LAUNCH_PATIENCE", 0.0)


@pytest.mark.usefixtures("hangs_at_once")
def test_a_launch_that_hangs_holds_up_no_other(stage: Stage) -> None:
    stage.launcher.hanging["hangs"] = threading.Event()
    hangs = stage.submit("hangs", team="red", pool="t4", gpus=1)
    its_neighbour = stage.submit(team="red", pool="t4", gpus=1)
    elsewhere = stage.submit(location="other", team="red", pool="t4", gpus=1)
    cpu = stage.submit()

    stage.pass_()

    stage.launcher.await_launched(its_neighbour, elsewhere, cpu)
    stage.launcher.await_tried(hangs)
    stage.pass_()
    stage.pass_()
    assert stage.launcher.tried.count(hangs) == 1, "it goes on, and is not tried beside itself"
    assert hangs in stage.holders()
    stage.launcher.hanging["hangs"].set()
    stage.launcher.await_launched(hangs)
    stage.assert_nothing_lost()


@pytest.mark.usefixtures("hangs_at_once")
def test_where_many_launches_hang_no_more_are_tried_until_one_returns(stage: Stage) -> None:
    events = {f"hangs{number}": threading.Event() for number in range(4)}
    stage.launcher.hanging.update(events)
    hanging = [stage.submit(job, team="red", pool="a100", gpus=1) for job in events]
    behind = stage.submit(team="red", pool="a100", gpus=4)
    cpu_behind = stage.submit()

    stage.pass_()
    stage.launcher.await_tried(*hanging)
    stage.pass_()
    cpu_elsewhere = stage.submit(location="other")
    stage.pass_()
    stage.launcher.await_launched(cpu_elsewhere)

    assert stage.launched == [cpu_elsewhere]
    assert stage.holders() == set(hanging), "what was not begun gives its GPUs back"
    assert stage.reason(behind) == "environment"
    assert "4 launches into code location 'jobs' hang" in stage.events(behind)
    assert stage.status(cpu_behind) == "QUEUED"

    events["hangs0"].set()
    stage.pass_until(lambda: behind in stage.launched)
    for event in events.values():
        event.set()
    stage.pass_until(lambda: cpu_behind in stage.launched)
    stage.launcher.await_launched(*hanging)
    stage.assert_nothing_lost()
