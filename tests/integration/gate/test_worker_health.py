"""A launcher that can look for its workers is asked: what it says counts more than a status."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from dagster import DagsterRun
from dagster._core.launcher import WorkerStatus
from gate_stage import Stage

OpenStage = Callable[..., Stage]


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dagster_gpufair.gate.holders.worker_health.ASK_AGAIN", 0.0)
    monkeypatch.setattr("dagster_gpufair.gate.holders.worker_health.GONE_FOR", 0.0)
    monkeypatch.setattr("dagster_gpufair.engine.reconcile.LINGERS_AFTER", 0.0)


def start_one_and_let_another_wait(stage: Stage) -> tuple[str, str]:
    runs = stage.submit(team="red", pool="a100", gpus=8)
    waits = stage.submit(team="red", pool="a100", gpus=8)
    stage.launcher.health[runs] = WorkerStatus.RUNNING
    stage.pass_()
    stage.start(runs)
    stage.pass_()
    return runs, waits


@pytest.mark.parametrize("gone", [WorkerStatus.NOT_FOUND, WorkerStatus.FAILED])
def test_a_run_whose_worker_is_gone_gives_its_gpus_back(stage: Stage, gone: WorkerStatus) -> None:
    runs, waits = start_one_and_let_another_wait(stage)

    stage.launcher.health[runs] = gone
    stage.pass_until(lambda: stage.status(runs) == "FAILURE")
    stage.pass_until(lambda: waits in stage.launched)

    assert "its worker is gone" in stage.events(runs)


def test_a_run_that_dagster_monitors_is_left_to_dagster(open_stage: OpenStage) -> None:
    """It may resume the run with another worker."""
    stage = open_stage(run_monitoring={"enabled": True})
    runs, _ = start_one_and_let_another_wait(stage)

    stage.launcher.health[runs] = WorkerStatus.NOT_FOUND
    for _ in range(5):
        stage.pass_()

    assert stage.status(runs) == "STARTED"
    assert stage.holders() == {runs}


def test_a_worker_that_goes_on_when_its_run_is_over_keeps_its_gpus(stage: Stage) -> None:
    runs, waits = start_one_and_let_another_wait(stage)

    stage.instance.report_run_failed(stage.run(runs))
    stage.pass_until(lambda: "its processes hold" in stage.tags(runs)["reason"])
    assert stage.holders() == {runs}

    stage.launcher.health[runs] = WorkerStatus.SUCCESS
    stage.pass_until(lambda: waits in stage.launched)
    assert stage.holders() == {waits}


def test_a_launcher_that_does_not_answer_holds_gpus_for_a_while_only(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_go = threading.Event()
    runs, waits = start_one_and_let_another_wait(stage)
    monkeypatch.setattr(
        stage.launcher, "check_run_worker_health", lambda _: let_go.wait(timeout=60)
    )

    stage.succeed(runs)
    stage.pass_()
    stage.pass_()
    assert stage.holders() == {runs}
    monkeypatch.setattr("dagster_gpufair.gate.holders.worker_health.PATIENCE", 0.0)
    stage.pass_()
    stage.pass_()

    assert stage.launched == [runs, waits]
    let_go.set()


def test_a_question_that_hangs_silences_the_launcher_for_no_other_run(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dagster_gpufair.gate.holders.worker_health.PATIENCE", 0.1)
    let_go = threading.Event()
    hangs, gone = (stage.submit(team="red", pool="a100", gpus=4) for _ in range(2))
    stage.launcher.health = {hangs: WorkerStatus.RUNNING, gone: WorkerStatus.RUNNING}
    stage.pass_()
    for run_id in (hangs, gone):
        stage.start(run_id)
    usual = stage.launcher.check_run_worker_health

    def ask(run: DagsterRun) -> Any:
        if run.run_id == hangs:
            let_go.wait(timeout=60)
        return usual(run)

    monkeypatch.setattr(stage.launcher, "check_run_worker_health", ask)
    stage.launcher.health[gone] = WorkerStatus.NOT_FOUND

    stage.pass_until(lambda: stage.status(gone) == "FAILURE")

    assert stage.status(hangs) == "STARTED"
    let_go.set()
