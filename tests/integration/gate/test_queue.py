"""Runs with GPUs from their submission to their end, on a real instance and ledger."""

from __future__ import annotations

from gate_stage import Stage


def test_a_run_within_quota_starts_and_gives_its_gpus_back(stage_on_each: Stage) -> None:
    stage = stage_on_each
    first = stage.submit(team="red", pool="a100", gpus=8)
    second = stage.submit(team="red", pool="a100", gpus=4)

    stage.pass_()

    assert stage.tags(first)["state"] == "waiting"
    assert stage.launched == [second]
    assert stage.tags(second)["state"] == "granted"
    assert stage.reason(first) == "insufficient_gpus"
    assert "Waiting, 1st in a100: needs 8 a100" in stage.events(first)
    assert "Granted 4 × a100 on n1, within the quota of red" in stage.events(second)

    stage.start(second)
    stage.succeed(second)
    stage.pass_()
    assert stage.launched == [second, first]
    assert stage.tags(second)["state"] == "released"
    stage.finish_all()
    assert stage.history(second) == ["submitted", "granted", "released"]
    stage.assert_nothing_lost()


def test_a_run_without_gpus_takes_dagsters_own_path(stage: Stage) -> None:
    cpu = stage.submit(team="red")

    stage.pass_()

    assert stage.launched == [cpu]
    assert stage.tags(cpu) == {"team": "red"}
    assert stage.request(cpu) is None


def test_what_is_said_survives_the_daemon(stage: Stage) -> None:
    stage.submit(team="red", pool="a100", gpus=4)
    waits = stage.submit(team="blue", pool="a100", gpus=8)
    stage.pass_()
    said = stage.events(waits)

    stage.restart_daemon()
    stage.pass_()

    assert stage.reason(waits) == "insufficient_gpus"
    assert stage.events(waits) == said
