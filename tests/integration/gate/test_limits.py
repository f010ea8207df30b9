"""Dagster's own limits hold for GPU runs and other runs together, as its own daemon keeps them."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from gate_stage import Stage, in_child

from dagster_gpufair.gate import dagster_internals

OpenStage = Callable[..., Stage]
PRIORITY = "dagster/priority"


def test_runs_at_once_are_shared_by_priority_then_age(open_stage: OpenStage) -> None:
    stage = open_stage(max_concurrent_runs=3)
    old_cpu = stage.submit()
    old_gpu = stage.submit(team="red", pool="t4", gpus=1)
    cpu = stage.submit()
    gpu = stage.submit(team="red", pool="t4", gpus=1)
    urgent_cpu = stage.submit(**{PRIORITY: 10})

    stage.pass_()

    assert sorted(stage.launched) == sorted([urgent_cpu, old_cpu, old_gpu])
    assert stage.reason(gpu) == "run_limit"
    assert "runs 3 runs at once, and no more" in stage.events(gpu)
    assert stage.holders() == {old_gpu}, "what may not run holds no GPU"

    stage.pass_()
    assert len(stage.launched) == 3
    stage.succeed(old_cpu)
    stage.pass_()
    assert stage.launched[3:] == [cpu]
    stage.succeed(cpu)
    stage.pass_()
    assert stage.launched[4:] == [gpu]


def test_a_gpu_run_of_higher_priority_takes_the_last_slot(open_stage: OpenStage) -> None:
    stage = open_stage(max_concurrent_runs=1)
    cpu = stage.submit()
    gpu = stage.submit(team="red", pool="t4", gpus=1, **{PRIORITY: 1})

    stage.pass_()

    assert stage.launched == [gpu]
    assert stage.status(cpu) == "QUEUED"


def test_what_is_about_to_run_counts_for_the_runs_at_once(
    open_stage: OpenStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run holds GPUs and is not launched yet: it is not in progress, and will be."""
    stage = open_stage(max_concurrent_runs=1)
    gpu = stage.submit(team="red", pool="t4", gpus=1)
    with monkeypatch.context() as dying:
        dying.setattr("dagster_gpufair.gate.queue.gate.launch_granted", lambda *_: os._exit(9))
        assert in_child(lambda: stage.pass_(stage.new_daemon())) == 9
    assert stage.holders() == {gpu}
    cpu = stage.submit()

    stage.pass_()

    assert stage.launched == [gpu]
    stage.succeed(gpu)
    stage.pass_()
    assert stage.launched == [gpu, cpu]


def test_a_limit_on_a_tag_holds_and_leaves_the_gpus_to_others(open_stage: OpenStage) -> None:
    stage = open_stage(tag_concurrency_limits=[{"key": "org/license", "limit": 1}])
    licensed = {"org/license": "solver"}
    cpu = stage.submit(**licensed)
    stage.pass_()
    limited = [stage.submit(team="red", pool="t4", gpus=2, **licensed) for _ in range(2)]
    other = stage.submit(team="red", pool="t4", gpus=4)

    stage.pass_()

    assert stage.launched == [cpu, other]
    assert [stage.reason(run_id) for run_id in limited] == ["run_limit"] * 2
    assert "a tag concurrency limit of this Dagster instance is reached" in stage.events(limited[0])
    request = stage.request(limited[0])
    assert request is not None and request.blocked_reason == "run_limit"

    stage.succeed(cpu)
    stage.pass_()
    assert stage.launched == [cpu, other]
    assert stage.reason(limited[0]) == "insufficient_gpus", "the limit is not what it waits for now"
    stage.succeed(other)
    stage.pass_()
    assert stage.launched == [cpu, other, limited[0]]
    assert stage.reason(limited[1]) == "run_limit"


def test_a_limit_for_each_value_of_a_tag(open_stage: OpenStage) -> None:
    limit = {"key": "org/user", "value": {"applyLimitPerUniqueValue": True}, "limit": 1}
    stage = open_stage(tag_concurrency_limits=[limit])
    first, second = (
        stage.submit(team="red", pool="t4", gpus=1, **{"org/user": "ann"}) for _ in range(2)
    )
    bobs = stage.submit(team="red", pool="t4", gpus=1, **{"org/user": "bob"})

    stage.pass_()

    assert sorted(stage.launched) == sorted([first, bobs])
    assert stage.reason(second) == "run_limit"


def test_the_slots_of_a_dagster_pool_hold_for_gpu_runs(open_stage: OpenStage) -> None:
    stage = open_stage(concurrency={"pools": {"granularity": "run"}})
    stage.instance.event_log_storage.set_concurrency_slots("warehouse", 1)
    first = stage.submit(team="red", pool="t4", gpus=1, pools=["warehouse"])
    second = stage.submit(team="red", pool="t4", gpus=1, pools=["warehouse"])
    cpu = stage.submit(pools=["warehouse"])
    other = stage.submit(team="red", pool="t4", gpus=1)

    stage.pass_()

    assert sorted(stage.launched) == sorted([first, other])
    assert stage.reason(second) == "run_limit"
    assert "the slots of a Dagster concurrency pool that its steps need" in stage.events(second)
    assert stage.status(cpu) == "QUEUED"
    stage.succeed(first)
    stage.pass_()
    assert stage.launched[2:] == [second]


@pytest.mark.skipif(
    not dagster_internals.SHARES_POOLS_READ, reason="this Dagster's own daemon reads them again too"
)
def test_a_pass_reads_each_pool_of_dagster_once_however_often_it_plans(
    open_stage: OpenStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = open_stage(concurrency={"pools": {"granularity": "run"}})
    storage = stage.instance.event_log_storage
    pools = ["warehouse", "api"]
    for pool in pools:
        storage.set_concurrency_slots(pool, 1)
    runs = [stage.submit(team="red", pool="t4", gpus=1, pools=[pool]) for pool in pools * 3]
    read: list[str] = []
    usual = storage.get_concurrency_infos

    def counted(names: list[str]) -> object:
        read.extend(names)
        return usual(names)

    monkeypatch.setattr(storage, "get_concurrency_infos", counted)

    stage.pass_()

    assert sorted(stage.launched) == sorted(runs[:2])
    assert sorted(read) == ["api", "warehouse"]

    read.clear()
    stage.succeed(runs[0])
    stage.pass_()

    assert stage.launched[2:] == [runs[2]]
    assert sorted(read) == ["api", "warehouse"]


def test_pools_that_cannot_be_counted_block_nothing(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise RuntimeError("no such table")

    monkeypatch.setattr(stage.instance.event_log_storage, "get_concurrency_keys", fail)
    gpu = stage.submit(team="red", pool="t4", gpus=1, pools=["warehouse"])
    cpu = stage.submit(pools=["warehouse"])

    stage.pass_()

    assert sorted(stage.launched) == sorted([gpu, cpu])


def test_without_gpu_runs_the_same_runs_start_in_the_same_order_as_with_dagsters_own(
    open_stage: OpenStage,
) -> None:
    stage = open_stage(
        max_concurrent_runs=4, tag_concurrency_limits=[{"key": "org/license", "limit": 1}]
    )
    priorities = [0, 5, -1, 5, 0, 3, 0]

    def submit_all() -> list[str]:
        return [
            stage.submit(
                **{PRIORITY: priority, **({"org/license": "x"} if number % 3 == 1 else {})}
            )
            for number, priority in enumerate(priorities)
        ]

    def order_of(pass_: Callable[[], None], runs: list[str]) -> list[int]:
        before = len(stage.launched)
        while stage.unfinished():
            pass_()
            for run_id in stage.launched[before:]:
                if stage.status(run_id) != "SUCCESS":
                    stage.succeed(run_id)
        return [runs.index(run_id) for run_id in stage.launched[before:]]

    assert order_of(stage.stock_pass, submit_all()) == order_of(stage.pass_, submit_all())


def test_while_dagster_runs_as_many_as_it_may_that_is_the_reason_of_all_that_would_fit(
    open_stage: Callable[..., Stage],
) -> None:
    stage = open_stage(max_concurrent_runs=2)
    runs = [stage.submit(team="red", pool="t4", gpus=1) for _ in range(6)]

    stage.pass_()

    assert stage.launched == runs[:2]
    assert {stage.reason(run_id) for run_id in runs[2:]} == {"run_limit"}
    assert "max_concurrent_runs" in stage.tags(runs[5])["why"]
