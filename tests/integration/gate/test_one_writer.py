"""Two daemons by mistake: one dequeues, the other stands by, and no run is launched by both."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from gate_stage import Stage

from dagster_gpufair.gate.queue import gate as gate_module
from dagster_gpufair.gate.queue import launching
from dagster_gpufair.ledger.writer import Holder

NOW = time.time()
LATER = NOW + 60
"""The first daemon's turn is over."""


@pytest.fixture
def machines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each daemon is on a machine of its own."""
    here, numbers = Holder.here, count()
    monkeypatch.setattr(
        Holder, "here", lambda started: replace(here(started), host=f"machine {next(numbers)}")
    )


def test_a_daemon_begun_again_in_the_same_process_goes_on_at_once(stage: Stage) -> None:
    stage.pass_(at=NOW)
    run_id = stage.submit(team="red", pool="a100", gpus=4)
    stage.pass_(stage.new_daemon(), at=NOW + 1)
    assert stage.launched == [run_id]


@pytest.mark.usefixtures("machines")
def test_the_second_stands_by_and_takes_over(stage_on_each: Stage) -> None:
    stage, second = stage_on_each, stage_on_each.new_daemon()
    gpu = stage.submit(team="red", pool="a100", gpus=4)
    stage.pass_(at=NOW)
    waits = stage.submit(team="red", pool="a100", gpus=4)
    cpu = stage.submit()

    stage.pass_(second, at=NOW + 1)
    stage.pass_(second, at=NOW + 2)

    assert stage.launched == [gpu]
    standing_by = "Another daemon dequeues the runs of this instance; this one stands by."
    assert stage.log.said() == [standing_by]

    stage.pass_(second, at=LATER)
    assert sorted(stage.launched) == sorted([gpu, waits, cpu])
    stage.pass_(at=LATER + 1)
    assert stage.log.said() == [standing_by]
    stage.assert_nothing_lost()


@pytest.mark.usefixtures("machines")
def test_a_daemon_that_ends_as_it_should_gives_its_turn_up(stage: Stage) -> None:
    stage.pass_(at=NOW)
    gpu = stage.submit(team="red", pool="a100", gpus=4)

    stage.restart_daemon()
    stage.pass_(at=NOW + 1)

    assert stage.launched == [gpu]


@pytest.mark.usefixtures("machines")
def test_two_that_overtake_each_other_launch_each_run_once(stage_on_each: Stage) -> None:
    stage = stage_on_each
    for _ in range(8):
        stage.submit(team="red", pool="t4", gpus=1)
    meet = threading.Barrier(2)
    troubles: list[str] = []

    def make_passes(daemon: Any, clock: float) -> None:
        for number in range(6):
            meet.wait(timeout=60)
            # By its own clock the other's turn is over, while that one is in the middle of its pass.
            troubles.extend(stage.troubled_pass(daemon, at=clock + 80 * number))
            for run_id, state in stage.unfinished().items():
                if state == "STARTING" and run_id in stage.launched:
                    stage.succeed(run_id)

    threads = [
        threading.Thread(target=make_passes, args=(stage.new_daemon(), clock))
        for clock in (NOW, NOW + 40)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    stage.daemon, stage.at = stage.new_daemon(), NOW + 1000
    stage.finish_all()

    assert troubles == []
    stage.assert_nothing_lost()


@pytest.mark.parametrize(
    "step",
    ["follow", "plan", "carry_out", "confirm_turn"],
)
@pytest.mark.usefixtures("machines")
def test_a_daemon_that_is_overtaken_in_mid_pass_writes_nothing_more(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """The process is held up just before one step of its pass, until another has taken over."""
    ended = stage.submit(team="red", pool="a100", gpus=4)
    stage.pass_(at=NOW)
    stage.succeed(ended)
    gpu = stage.submit(team="red", pool="a100", gpus=8)
    behind = stage.submit(team="red", pool="a100", gpus=8)
    cpu = stage.submit()
    second = stage.new_daemon()
    queue = stage.daemon._gate.engine
    usual = getattr(queue, step)
    histories = []

    def held_up(*args: Any) -> Any:
        monkeypatch.undo()
        stage.pass_(second, at=LATER)
        histories.extend(stage.history(run_id) for run_id in (ended, gpu, behind))
        return usual(*args)

    monkeypatch.setattr(queue, step, held_up)
    stage.pass_(at=NOW + 1)

    assert stage.launched == [ended, gpu, cpu]
    assert histories == [stage.history(run_id) for run_id in (ended, gpu, behind)]
    assert stage.events(gpu).count("Granted") == 1
    assert stage.status(behind) == "QUEUED"
    assert any("another daemon has taken over" in said for said in stage.log.said())
    stage.assert_nothing_lost()


@pytest.mark.parametrize("held_up_before", ["claim", "launch"])
@pytest.mark.usefixtures("machines")
def test_a_launch_that_is_overtaken_happens_once(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, held_up_before: str
) -> None:
    """The process is held up in the middle of a launch, and another daemon has a turn meanwhile."""
    gpu = stage.submit(team="red", pool="a100", gpus=8)
    second = stage.new_daemon()
    before = {
        "claim": (gate_module, "launch_granted"),
        "launch": (launching, "launch"),
    }
    module, name = before[held_up_before]
    usual = getattr(module, name)

    def held_up(*args: Any) -> Any:
        monkeypatch.undo()
        stage.pass_(second, at=LATER)
        stage.pass_(second, at=LATER + 1)
        return usual(*args)

    monkeypatch.setattr(module, name, held_up)
    stage.troubled_pass(at=NOW)

    stage.launcher.await_launched(gpu)
    stage.pass_(second, at=LATER + 2)
    assert stage.launched == [gpu]
    assert stage.holders() == {gpu}
    stage.assert_nothing_lost()


@pytest.mark.usefixtures("machines")
def test_nobody_comes_between_the_claim_and_the_start_of_a_launch(
    stage_on_each: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = stage_on_each
    gpu = stage.submit(team="red", pool="a100", gpus=8)
    second = stage.new_daemon()
    overtaking = threading.Thread(target=stage.troubled_pass, args=(second, LATER))
    usual = launching.mark_starting
    waits_for_the_ledger = []

    def held_up(*args: Any) -> None:
        monkeypatch.undo()
        overtaking.start()
        overtaking.join(timeout=1)
        waits_for_the_ledger.append(overtaking.is_alive() and stage.launched == [])
        usual(*args)

    monkeypatch.setattr(launching, "mark_starting", held_up)
    stage.troubled_pass(at=NOW)
    overtaking.join(timeout=60)
    stage.pass_(second, at=LATER + 1)

    assert waits_for_the_ledger == [True]
    assert stage.launched == [gpu]
    assert stage.history(gpu) == ["submitted", "granted"]
    stage.assert_nothing_lost()


@pytest.mark.usefixtures("machines")
def test_a_launch_that_returns_after_its_turn_changes_nothing(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its daemon slept in it, another one has had a turn: it neither queues the run again nor fails it."""
    gpu = stage.submit(team="red", pool="a100", gpus=8)
    second = stage.new_daemon()
    usual = launching.launch

    def held_up(*args: Any) -> Any:
        monkeypatch.undo()
        stage.pass_(second, at=LATER)
        usual(*args)
        raise RuntimeError("the connection was reset")

    monkeypatch.setattr(launching, "launch", held_up)
    stage.troubled_pass(at=NOW)
    stage.launcher.await_launched(gpu)
    stage.pass_(at=LATER + 1)
    stage.start(gpu)
    stage.pass_(second, at=LATER + 2)
    stage.pass_(second, at=LATER + 400)

    assert stage.status(gpu) == "STARTED"
    assert stage.holders() == {gpu}
    stage.assert_nothing_lost()


@pytest.mark.usefixtures("machines")
def test_a_launch_that_another_daemon_has_taken_on_is_left_to_it(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first was held up before it took it on, and finds that its turn is over."""
    gpu = stage.submit(team="red", pool="a100", gpus=8)
    second = stage.new_daemon()
    usual = gate_module.launch_granted

    def held_up(*args: Any) -> Any:
        monkeypatch.undo()
        stage.pass_(second, at=LATER)
        return usual(*args)

    monkeypatch.setattr(gate_module, "launch_granted", held_up)
    stage.troubled_pass(at=NOW)

    stage.pass_(second, at=LATER + 1)
    assert stage.launched == [gpu]
    assert stage.holders() == {gpu}
    stage.assert_nothing_lost()
