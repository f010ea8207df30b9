"""A launch with a workspace file of one's own can name another team's code location."""

from __future__ import annotations

import pytest
from dagster import DagsterRun
from gate_stage import Stage


def test_a_run_whose_code_is_not_its_locations_is_refused_before_it_starts(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_foreign(_: object, run: DagsterRun) -> bool:
        return run.job_name == "mine"

    monkeypatch.setattr("dagster_gpufair.gate.queue.daemon.is_foreign", is_foreign)
    foreign = stage.submit("mine", team="red", pool="a100", gpus=8)
    waits = stage.submit(team="red", pool="a100", gpus=8)

    stage.pass_()
    stage.pass_()

    assert stage.launched == [waits]
    assert stage.status(foreign) == "FAILURE"
    assert "its code is not that of code location 'jobs'" in stage.events(foreign)
    assert stage.tags(foreign)["state"] == "refused"
    assert stage.history(foreign) == ["submitted", "refused"]
    stage.assert_nothing_lost()
