"""Somebody sets the machine's clock: durations stay what they are, and passes go on."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from gate_stage import POLICY, Stage

from dagster_gpufair.engine import clock as clock_module
from dagster_gpufair.ledger import leases, requests

HOUR = 3600.0


class Time:
    """The time of day as the daemon's machine has it: ``set`` is how far somebody has set it."""

    def __init__(self) -> None:
        self.set = 0.0
        self._now = time.time

    def time(self) -> float:
        return self._now() + self.set


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Time]:
    machine = Time()
    monkeypatch.setattr(time, "time", machine.time)
    yield machine


@pytest.mark.parametrize("by", [HOUR, -2 * HOUR])
def test_a_bounded_run_keeps_the_time_that_it_has(
    stage_on_each: Stage, machine: Time, by: float
) -> None:
    stage = stage_on_each
    run_id = stage.submit(team="red", pool="a100", gpus=8, max_duration="30m")
    waits = stage.submit(team="red", pool="a100", gpus=8)
    stage.pass_()
    stage.start(run_id)
    stage.pass_()
    stage.log.said()

    machine.set += by
    stage.pass_()
    stage.pass_()

    assert stage.launcher.terminated == []
    assert stage.status(run_id) == "STARTED"
    (lease,) = stage.leases(run_id)
    assert lease.began_at is not None
    assert abs(time.time() - lease.began_at) < 120
    request = stage.request(waits)
    assert request is not None
    assert abs(time.time() - request.submitted_at) < 120
    (said,) = stage.log.said()
    assert "clock was set" in said
    assert f"{abs(by):.0f} s" in said
    stage.succeed(run_id)
    stage.pass_()
    assert stage.launched == [run_id, waits]
    stage.assert_nothing_lost()


@pytest.mark.parametrize("by", [HOUR, -2 * HOUR])
def test_a_run_under_notice_keeps_the_time_that_it_has(
    stage: Stage, machine: Time, by: float
) -> None:
    stage.write_policy(f"{POLICY}preemption: {{mode: auto, grace: 1m, min_runtime: 0s}}")
    stage.pass_()
    borrows = stage.submit(team="blue", pool="a100", gpus=8)
    stage.pass_()
    stage.start(borrows)
    stage.pass_()
    asks = stage.submit(team="red", pool="a100", gpus=4)
    stage.pass_()
    assert stage.reason(asks) == "preempting"

    machine.set += by
    stage.pass_()
    stage.pass_()

    assert stage.launcher.terminated == []
    (lease,) = stage.leases(borrows)
    assert lease.notice_until is not None
    assert 0 < lease.notice_until - time.time() <= 60
    machine.set += 61
    stage.at = time.time()
    stage.pass_()
    stage.launcher.await_terminated(borrows)
    stage.pass_until(lambda: stage.holders() == {asks})


def test_a_daemon_that_begins_after_the_clock_was_set_knows_it(stage: Stage, machine: Time) -> None:
    run_id = stage.submit(team="red", pool="a100", gpus=8, max_duration="30m")
    stage.pass_()
    stage.start(run_id)
    stage.pass_()

    machine.set += HOUR
    stage.restart_daemon()
    stage.pass_()
    stage.pass_()

    assert stage.launcher.terminated == []
    assert stage.holders() == {run_id}


def test_a_clock_that_is_adjusted_little_by_little_is_heeded_when_it_adds_up(
    stage: Stage, machine: Time
) -> None:
    run_id = stage.submit(team="red", pool="a100", gpus=8, max_duration="30m")
    stage.pass_()
    stage.start(run_id)
    stage.pass_()
    (before,) = stage.leases(run_id)
    for _ in range(6):
        machine.set += clock_module.JUMP / 2
        stage.pass_()

    (after,) = stage.leases(run_id)
    assert before.began_at is not None and after.began_at is not None
    assert after.began_at - before.began_at == pytest.approx(3 * clock_module.JUMP, abs=3)


def test_two_daemons_that_take_turns_heed_it_once(
    stage: Stage, machine: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = stage.daemon, stage.new_daemon()
    run_id = stage.submit(team="red", pool="a100", gpus=8, max_duration="30m")
    stage.pass_(first)
    stage.start(run_id)
    stage.pass_(first)
    (before,) = stage.leases(run_id)
    assert before.began_at is not None

    machine.set -= HOUR
    stage.pass_(second)
    stage.pass_(first)
    stage.pass_(second)

    (after,) = stage.leases(run_id)
    assert after.began_at == pytest.approx(before.began_at - HOUR, abs=3)


def test_what_is_over_keeps_the_times_that_it_had(stage: Stage, machine: Time) -> None:
    run_id = stage.submit(team="red", pool="a100", gpus=8)
    stage.pass_()
    stage.start(run_id)
    stage.succeed(run_id)
    stage.pass_()
    with stage.ledger.reading() as session:
        before = leases.of_run(session, run_id), requests.by_ids(session, [run_id])

    machine.set += HOUR
    stage.pass_()

    with stage.ledger.reading() as session:
        assert (leases.of_run(session, run_id), requests.by_ids(session, [run_id])) == before
