"""What is said on runs' pages: ends come first, and nothing that matters is lost."""

from __future__ import annotations

import pytest
from gate_stage import POLICY, Stage

from dagster_gpufair.ledger import events


def test_the_ends_of_runs_are_told_first_in_a_burst(stage: Stage) -> None:
    ran = [stage.submit(team="red", pool="t4", gpus=1) for _ in range(4)]
    stage.pass_()
    for run_id in ran:
        stage.start(run_id)
        stage.succeed(run_id)
    stage.submit(team="red", pool="a100", gpus=8)
    waiting = [stage.submit(team="red", pool="a100", gpus=8) for _ in range(40)]

    stage.pass_()

    assert [stage.tags(run_id)["state"] for run_id in ran] == ["released"] * 4
    for _ in range(4):
        stage.pass_()
    assert {stage.tags(run_id).get("state") for run_id in waiting} == {"waiting"}


def test_an_end_that_a_daemon_did_not_come_to_tell_is_told_by_the_next(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = stage.submit(team="red", pool="t4", gpus=1)
    waited = stage.submit(team="red", pool="a100", gpus=8)
    holds = stage.submit(team="red", pool="a100", gpus=8)
    stage.pass_()
    stage.start(run_id)
    stage.succeed(run_id)
    stage.cancel(holds if stage.status(holds) == "QUEUED" else waited)
    with monkeypatch.context() as dying:
        dying.setattr("dagster_gpufair.gate.page.teller.Teller._wake", lambda _: None)
        dying.setattr("dagster_gpufair.gate.page.teller.Teller.finish", lambda *_, **__: True)
        stage.pass_()
    assert stage.tags(run_id)["state"] == "granted"

    stage.daemon = stage.new_daemon()
    stage.pass_()

    assert stage.tags(run_id)["state"] == "released"
    assert {stage.tags(each)["state"] for each in (waited, holds)} == {"granted", "cancelled"}


def test_a_grant_that_a_daemon_did_not_come_to_tell_is_told_by_the_next(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = stage.submit(team="red", pool="t4", gpus=1)
    with monkeypatch.context() as dying:
        dying.setattr("dagster_gpufair.gate.page.teller.Teller._wake", lambda _: None)
        dying.setattr("dagster_gpufair.gate.page.teller.Teller.finish", lambda *_, **__: True)
        stage.pass_()
    assert stage.launched == [run_id]
    assert "state" not in stage.tags(run_id)

    stage.daemon = stage.new_daemon()
    stage.pass_()

    assert stage.tags(run_id)["state"] == "granted"


def test_a_page_that_cannot_be_written_holds_up_nothing_and_is_written_later(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.submit(team="red", pool="a100", gpus=8)
    waits = stage.submit(team="red", pool="a100", gpus=8)

    def fail(*_: object) -> None:
        raise RuntimeError("the event log is read-only")

    with monkeypatch.context() as broken:
        broken.setattr("dagster_gpufair.gate.page.teller.say", fail)
        stage.pass_()
    assert "state" not in stage.tags(waits)
    assert any("could not be told" in said for said in stage.log.said())

    stage.pass_()
    assert stage.tags(waits)["state"] == "waiting"


def test_the_ledger_has_each_reason_that_a_run_waited_for_once(stage: Stage) -> None:
    """So that `gpufair history` can tell of them when the tags say something else."""
    stage.submit(team="red", pool="a100", gpus=8)
    waits = stage.submit(team="red", pool="a100", gpus=8)
    stage.pass_()
    stage.pass_()
    broken = f"{POLICY}oops: 1\n"
    stage.write_policy(broken)
    stage.pass_()
    stage.write_policy(POLICY + "borrowing: {mode: off}\n")
    stage.pass_()
    stage.restart_daemon()
    stage.pass_()
    stage.write_policy(POLICY)
    stage.pass_()

    with stage.ledger.reading() as session:
        told = [event for event in events.of_run(session, waits) if event.kind == "waits"]
    assert [event.data["reason"] for event in told] == [
        "insufficient_gpus",
        "quota_exhausted",
        "insufficient_gpus",
    ], "a broken policy file is no other reason, nor is a daemon that was restarted"
    assert told[0].data["why"].startswith("needs 8 ")
    assert (told[0].pool, told[0].team) == ("a100", "red")
