"""A policy that renames, removes or redraws pools gives no GPU out a second time."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from gate_stage import Stage

OpenStage = Callable[..., Stage]
BEFORE = """
pools: {a100: {nodes: {n1: 8, n2: 8}}}
teams: {red: {quota: {a100: 16}}, blue: {}}
"""
RENAMED = """
pools: {ampere: {nodes: {n1: 8, n2: 8}}}
teams: {red: {quota: {ampere: 16}}, blue: {}}
"""
SPLIT = """
pools: {a100: {nodes: {n2: 8}}, training: {nodes: {n1: 8}}}
teams: {red: {quota: {a100: 8, training: 8}}, blue: {}}
"""


@pytest.mark.parametrize(("after", "pool"), [(RENAMED, "ampere"), (SPLIT, "training,a100")])
def test_work_goes_on_counting_on_the_nodes_that_it_is_on(
    open_stage: OpenStage, after: str, pool: str
) -> None:
    stage = open_stage(BEFORE)
    gang = stage.submit(team="red", pool="a100", gpus=16)
    stage.pass_()
    assert stage.launched == [gang]

    stage.write_policy(after)
    stage.pass_()
    waits = stage.submit(team="blue", pool=pool, gpus=8)
    stage.pass_()
    stage.restart_daemon()
    stage.pass_()

    assert stage.launched == [gang]
    assert stage.reason(waits) in ("insufficient_gpus", "reserve_held")
    stage.succeed(gang)
    stage.pass_()
    assert stage.launched == [gang, waits]


def test_what_was_free_stays_free(open_stage: OpenStage) -> None:
    stage = open_stage(BEFORE)
    runs = stage.submit(team="red", pool="a100", gpus=8)
    stage.pass_()

    stage.write_policy(RENAMED)
    stage.pass_()
    new = stage.submit(team="blue", pool="ampere", gpus=8)
    more = stage.submit(team="blue", pool="ampere", gpus=1)
    stage.pass_()

    assert stage.launched == [runs, new]
    assert stage.status(more) == "QUEUED"
