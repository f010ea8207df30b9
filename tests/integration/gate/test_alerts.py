"""People are told what happens to their runs: once, whatever the function that tells them does."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from gate_stage import Stage

from dagster_gpufair.gate.alerts import Alert, NoSuchFunction, function_of

OpenStage = Callable[..., Stage]
NOW = 1_000_000.0
POLICY = """
pools: {a100: {nodes: {n1: 8}}}
teams: {red: {quota: {a100: 8}}, blue: {}}
preemption: {mode: auto, min_runtime: 0s}
"""


@pytest.fixture
def told() -> Iterator[list[Alert]]:
    """What the function of a module was told, which fails at its first call."""
    module: Any = types.ModuleType("gpu_alerts_of_a_test")
    alerts: list[Alert] = []

    def tell(alert: Alert) -> None:
        alerts.append(alert)
        if len(alerts) == 1:
            raise RuntimeError("the chat is down")

    module.tell, module.nothing = tell, 1
    sys.modules[module.__name__] = module
    yield alerts
    del sys.modules[module.__name__]


def passes(stage: Stage, at: float) -> None:
    stage.pass_(at=at)
    stage.daemon._gate.alerts.finish(timeout=60)


def test_each_event_is_told_once_also_across_a_restart(
    open_stage: OpenStage, told: list[Alert]
) -> None:
    stage = open_stage(POLICY, on_event="gpu_alerts_of_a_test:tell")
    passes(stage, NOW)
    lent = stage.submit(team="blue", pool="a100", gpus=8)
    passes(stage, NOW + 1)
    stage.start(lent)
    passes(stage, NOW + 2)
    asks = stage.submit(team="red", pool="a100", gpus=4)
    passes(stage, NOW + 3)
    passes(stage, NOW + 4)
    assert [(alert.kind, alert.run_id, alert.team) for alert in told] == [("notice", lent, "blue")]
    assert f"for {asks[:8]} (rule reclaim). Save its work." in told[0].message

    stage.restart_daemon()
    stage.cancel(asks)
    passes(stage, NOW + 5)
    passes(stage, NOW + 6)
    assert [alert.kind for alert in told] == ["notice", "spared"], "that one failed changes nothing"


def test_what_happened_before_is_not_told(open_stage: OpenStage, told: list[Alert]) -> None:
    stage = open_stage(POLICY)
    lent = stage.submit(team="blue", pool="a100", gpus=8)
    stage.pass_(at=NOW)
    stage.start(lent)
    stage.pass_(at=NOW + 1)
    stage.submit(team="red", pool="a100", gpus=4)
    stage.pass_(at=NOW + 2)
    stage.coordinator.on_event = "gpu_alerts_of_a_test:tell"
    stage.restart_daemon()
    passes(stage, NOW + 3)
    assert told == []


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("gpu_alerts_of_a_test:tells", "cannot be imported"),
        ("no_such_module:tell", "cannot be imported"),
        ("gpu_alerts_of_a_test", "write module:function"),
        ("gpu_alerts_of_a_test:nothing", "is no function"),
    ],
)
@pytest.mark.usefixtures("told")
def test_a_function_that_is_not_there_is_said(setting: str, says: str) -> None:
    with pytest.raises(NoSuchFunction, match=says):
        function_of(setting)


def test_the_queue_goes_on_without_it(open_stage: OpenStage) -> None:
    stage = open_stage(POLICY, on_event="no_such_module:tell")
    run_id = stage.submit(team="red", pool="a100", gpus=8)
    stage.pass_(at=NOW)
    assert stage.holders() == {run_id}
    assert any("no_such_module:tell cannot be imported" in said for said in stage.log.said())
