"""A lease is judged by what is seen of its run, whatever the daemon last did."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
from gate_stage import Stage

from dagster_gpufair.gate.dagster_internals import enqueue
from dagster_gpufair.gate.queue import daemon as daemon_module
from dagster_gpufair.ledger import usage
from dagster_gpufair.ledger.state import state_of
from dagster_gpufair.scheduling.model import Account

OpenStage = Callable[..., Stage]


def test_a_lease_ends_when_its_run_did_not_when_that_was_noticed(
    open_stage_on_each: OpenStage,
) -> None:
    """A daemon that was away for two minutes books what was used, and no more."""
    stage = open_stage_on_each("""
        pools: {a100: {gpus: 8}}
        teams: {red: {quota: {a100: 8}}, blue: {}}
    """)
    run_id = stage.submit(team="blue", pool="a100", gpus=8)
    granted = time.time()
    stage.pass_(at=granted)
    stage.start(run_id)
    stage.succeed(run_id)
    record = stage.instance.get_run_record_by_id(run_id)
    assert record is not None and record.end_time is not None

    stage.restart_daemon()
    stage.pass_(at=granted + 120)

    (lease,) = stage.leases(run_id)
    assert lease.released_at == pytest.approx(record.end_time)
    with stage.ledger.reading() as session:
        used = usage.used(session, granted + 120, half_life=1e9)
    gpu_seconds = used[Account("blue"), "a100"] * 3600
    assert gpu_seconds == pytest.approx(8 * (record.end_time - granted), rel=0.01)


def test_a_launch_without_an_answer_keeps_its_gpus_until_its_worker_reports(stage: Stage) -> None:
    stage.launcher.timing_out.add("slow")
    slow = stage.submit("slow", team="red", pool="a100", gpus=8)
    waits = stage.submit(team="red", pool="a100", gpus=8)

    stage.pass_()
    stage.pass_()

    assert stage.status(slow) == "STARTING"
    assert stage.holders() == {slow}
    assert stage.tags(slow)["reason"].startswith("launch unanswered")
    assert "may still happen" in stage.events(slow)
    stage.restart_daemon()
    stage.pass_()
    assert stage.holders() == {slow}
    stage.start(slow)
    stage.pass_()
    stage.succeed(slow)
    stage.pass_()
    assert stage.launched == [waits]
    assert stage.launcher.tried.count(slow) == 1
    stage.assert_nothing_lost()


def test_a_launch_without_an_answer_is_over_after_the_start_timeout(stage: Stage) -> None:
    """By then no worker may come any more: one that does finds its run over, and ends."""
    now = time.time()
    stage.launcher.timing_out.add("slow")
    slow = stage.submit("slow", team="red", pool="a100", gpus=8)
    waits = stage.submit(team="red", pool="a100", gpus=8)

    stage.pass_(at=now)
    for seconds in (60, 170):
        stage.pass_(at=now + seconds)
        assert stage.status(slow) == "STARTING"
    stage.pass_(at=now + 200)

    assert stage.status(slow) == "FAILURE"
    assert "no worker has come within 3m" in stage.events(slow)
    stage.pass_(at=now + 201)
    assert stage.launched == [waits]


def test_a_launch_that_was_answered_and_whose_worker_never_comes_is_over(stage: Stage) -> None:
    """The code server said yes, and the process that it began died before its first word."""
    now = time.time()
    dumb = stage.submit(team="red", pool="a100", gpus=8)
    waits = stage.submit(team="red", pool="a100", gpus=8)

    stage.pass_(at=now)
    assert stage.launched == [dumb]
    stage.pass_(at=now + 170)
    assert stage.holders() == {dumb}
    stage.pass_(at=now + 200)
    stage.pass_(at=now + 201)

    assert stage.status(dumb) == "FAILURE"
    assert "no worker has come within 3m" in stage.events(dumb)
    assert stage.holders() == {waits}


def test_a_run_that_is_queued_again_while_it_runs_loses_no_gpu(stage: Stage) -> None:
    """Dagster does not do that, but anybody with the instance can: nobody would launch it, or end it."""
    taken_back = stage.submit(team="red", pool="a100", gpus=8)
    stage.pass_()
    stage.start(taken_back)
    stage.pass_()
    waits = stage.submit(team="red", pool="a100", gpus=8)
    run = stage.instance.get_run_by_id(taken_back)
    assert run is not None
    enqueue(stage.instance, run)

    stage.pass_()
    assert stage.status(taken_back) == "FAILURE"
    assert "put back into the queue after its work had begun" in stage.events(taken_back)
    stage.pass_()
    assert stage.holders() == {waits}


def test_a_daemon_that_died_in_a_launch_leaves_no_gpus_held_for_ever(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run is marked as starting, nothing launches it, and Dagster's run monitoring is off."""
    now = time.time()
    lost = stage.submit(team="red", pool="a100", gpus=8)
    with monkeypatch.context() as dying:
        dying.setattr("dagster_gpufair.gate.queue.launching.launch", lambda *_: 1 / 0)
        dying.setattr("dagster_gpufair.gate.queue.gate.Gate.heed_launches", lambda *_: None)
        stage.pass_(at=now)
    stage.daemon = stage.new_daemon()
    waits = stage.submit(team="red", pool="a100", gpus=8)

    stage.pass_(at=now + 100)
    assert stage.holders() == {lost}
    stage.pass_(at=now + 200)
    stage.pass_(at=now + 201)

    assert stage.status(lost) == "FAILURE"
    assert stage.holders() == {waits}


def test_a_stop_that_hangs_frees_nothing_and_holds_up_no_launch(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dagster_gpufair.engine.tries.FIRST_PAUSE", 0.0)
    let_go = threading.Event()
    asked = threading.Semaphore(0)

    def hang(run_id: str) -> bool:
        asked.release()
        return let_go.wait(timeout=60)

    now = time.time()
    bounded = stage.submit(team="red", pool="a100", gpus=8, max_duration="1m")
    stage.pass_(at=now)
    stage.start(bounded)
    monkeypatch.setattr(stage.launcher, "terminate", hang)
    waits = stage.submit(team="red", pool="a100", gpus=8)

    try:
        for seconds in range(70, 80):
            other = stage.submit(team="red", pool="t4", gpus=1)
            stage.pass_(at=now + seconds)
            stage.launcher.await_launched(other)
            stage.succeed(other)
        assert asked.acquire(timeout=60)
        assert bounded in stage.holders()
        assert stage.status(waits) == "QUEUED"
        assert stage.status(bounded) == "STARTED"
    finally:
        let_go.set()


def test_a_failed_launch_says_why_not_that_the_run_was_cancelled(stage: Stage) -> None:
    stage.launcher.broken.add("broken")
    broken = stage.submit("broken", team="red", pool="a100", gpus=8)

    stage.pass_()
    stage.pass_()

    tags = stage.tags(broken)
    assert tags["state"] == "released"
    assert tags["reason"] == "did not start"
    assert tags["why"] == "it could not be launched: RuntimeError: image not found"


def test_a_failed_launch_takes_no_waiting_points_of_its_source(open_stage: OpenStage) -> None:
    """Else the rest of a backfill would wait as if it had started something."""
    stage = open_stage(max_user_code_failure_retries=9)
    now = time.time()
    stage.launcher.unreachable.add("gone")
    shards = [
        stage.submit(location="gone", team="red", pool="t4", gpus=4, user="ann") for _ in range(2)
    ]
    stage.pass_(at=now + 3600)

    engine = stage.daemon._gate.engine
    assert engine.state({}, now).source_starts == {}
    with stage.ledger.reading() as session:
        assert state_of(session, engine.rules.policy, now).source_starts == {}
    assert stage.launcher.tried == shards[:1]


def test_a_run_that_ends_between_the_two_looks_of_a_pass_has_run(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = stage.submit(team="red", pool="a100", gpus=8)
    stage.pass_()
    stage.start(run_id)
    usual = daemon_module.unfinished_ids

    def then_it_ends(instance: object) -> object:
        ids = usual(instance)  # type: ignore[arg-type]
        monkeypatch.setattr(daemon_module, "unfinished_ids", usual)
        stage.succeed(run_id)
        return ids

    monkeypatch.setattr(daemon_module, "unfinished_ids", then_it_ends)
    for _ in range(3):
        stage.pass_()

    assert stage.history(run_id) == ["submitted", "granted", "released"]
    (lease,) = stage.leases(run_id)
    assert lease.release_reason == "success"


def test_a_launcher_that_raises_when_its_worker_has_begun_fails_nothing(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = stage.submit(team="red", pool="a100", gpus=8)
    waits = stage.submit(team="red", pool="a100", gpus=8)
    usual = stage.launcher.launch_run

    def launch(context: object) -> None:
        usual(context)
        stage.start(run_id)
        raise RuntimeError("504 Gateway Timeout")

    with monkeypatch.context() as late:
        late.setattr(stage.launcher, "launch_run", launch)
        stage.pass_()
    stage.pass_()

    assert stage.status(run_id) == "STARTED"
    assert stage.holders() == {run_id}
    assert stage.status(waits) == "QUEUED"


def test_what_was_borrowed_is_added_once_though_passes_break_off(
    open_stage: OpenStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = open_stage("""
        pools: {a100: {gpus: 8}}
        teams: {red: {quota: {a100: 8}}, blue: {}}
    """)
    now = time.time()
    stage.submit(team="blue", pool="a100", gpus=8)
    stage.pass_(at=now)

    with monkeypatch.context() as broken:
        broken.setattr("dagster_gpufair.gate.queue.gate.Gate.broken", lambda *_: 1 / 0)
        for step in range(1, 13):
            stage.troubled_pass(at=now + 5 * step)
    stage.pass_(at=now + 65)
    stage.pass_(at=now + 75)

    with stage.ledger.reading() as session:
        used = usage.used(session, now + 75, half_life=1e9)
    assert used[Account("blue"), "a100"] * 3600 == pytest.approx(8 * 75, rel=0.15)


def test_a_machine_without_threads_left_launches_when_it_has_some_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = stage.submit(team="red", pool="a100", gpus=8)
    usual = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if thread.name.startswith("gpufair-launch"):
            raise RuntimeError("can't start new thread")
        usual(thread)

    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", start)
        full.setattr("dagster_gpufair.gate.queue.daemon.LAUNCH_PATIENCE", 0.0)
        stage.pass_()
    assert stage.launched == []

    stage.pass_until(lambda: stage.launched == [run_id])
    stage.assert_nothing_lost()
