"""Runs with GPUs from their submission to their end, on a real instance and ledger."""

from __future__ import annotations

from typing import Any


def test_a_run_within_quota_starts_and_gives_its_gpus_back(stage: Any) -> None:
    first = stage.submit(team="red", pool="a100", gpus=8)
    second = stage.submit(team="red", pool="a100", gpus=4)
    assert stage.tags(first)["state"] == "waiting"

    assert stage.pass_() == []

    assert stage.launched == [second]
    assert stage.tags(second)["state"] == "granted"
    assert stage.tags(first)["reason"].startswith("insufficient_gpus")
    assert "Waiting" in stage.events(first)

    stage.start(second)
    stage.succeed(second)
    stage.pass_()
    assert stage.launched == [second, first]
    assert stage.violations() == []
