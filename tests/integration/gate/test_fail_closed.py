"""Whatever is set up wrongly, no run gets GPUs that nobody granted it; and what has them is counted."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from gate_stage import Stage

OpenStage = Callable[..., Stage]
IN_A_POD = {
    "team": "red",
    "pool": "t4",
    "dagster-k8s/config": json.dumps(
        {"container_config": {"resources": {"limits": {"nvidia.com/gpu": 2}}}}
    ),
}
STOCK = {"module": "dagster._core.run_coordinator", "class": "QueuedRunCoordinator"}


@pytest.mark.parametrize(
    "concurrency",
    [None, {"runs": {"tag_concurrency_limits": [{"key": "org/database", "limit": 1}]}}],
    ids=["limits of the coordinator", "limits of the instance"],
)
def test_dagsters_own_daemon_starts_no_gpu_run(
    open_stage: Callable[..., Stage], concurrency: dict[str, Any] | None
) -> None:
    options = {} if concurrency is None else {"concurrency": concurrency}
    stage = open_stage(**options)
    gpu = stage.submit(team="red", pool="a100", gpus=1)
    pod = stage.submit(**IN_A_POD)
    first = stage.submit(**{"org/database": "main"})
    second = stage.submit(**{"org/database": "main"})

    stage.stock_pass()

    started = [first, second] if concurrency is None else [first]
    assert stage.launched == started
    assert {stage.status(gpu), stage.status(pod)} == {"QUEUED"}

    stage.pass_()
    assert set(stage.launched) == {*started, gpu, pod}, "ours starts them, and keeps the limits"


def test_an_unrecorded_gpu_run_is_marked_all_the_same(open_stage: Callable[..., Stage]) -> None:
    stage = open_stage(policy=None)
    gpu = stage.submit(team="red", pool="a100", gpus=1)
    pod = stage.submit(**IN_A_POD)

    stage.stock_pass()

    assert stage.launched == []
    assert {stage.status(gpu), stage.status(pod)} == {"QUEUED"}


def test_our_daemon_beside_dagsters_coordinator_is_dagsters_own(
    open_stage: Callable[..., Stage],
) -> None:
    stage = open_stage(run_coordinator=STOCK)
    gpu = stage.submit(team="nobody", pool="nowhere", gpus=1)
    cpu = stage.submit()

    stage.pass_()

    assert stage.launched == [gpu, cpu]
    assert stage.tags(gpu) == {"team": "nobody", "pool": "nowhere", "gpus": "1"}


def test_gpus_in_use_behind_the_gates_back_are_counted(stage: Stage) -> None:
    behind = stage.enqueue(team="red", pool="a100", gpus=6)
    stage.start(behind)
    waits = stage.submit(team="blue", pool="a100", gpus=4)

    stage.pass_()

    assert stage.launched == []
    assert stage.holders() == {behind}
    (lease,) = stage.leases(behind)
    assert lease.ungated and lease.gpus == 6000
    assert stage.history(behind) == ["ungated"]
    assert f"Run {behind} of team red uses 6 × a100 without a grant" in "".join(stage.log.said())
    assert stage.reason(waits) == "insufficient_gpus"

    stage.restart_daemon()
    stage.succeed(behind)
    stage.pass_()
    assert stage.launched == [waits]
    assert stage.history(behind) == ["ungated", "released"]
    stage.assert_nothing_lost()


def test_a_waiting_run_that_is_started_behind_the_gates_back_is_counted(stage: Stage) -> None:
    stage.pass_()
    behind = stage.submit(team="red", pool="a100", gpus=8)
    stage.start(behind)
    waits = stage.submit(team="blue", pool="a100", gpus=4)

    stage.pass_()

    assert stage.holders() == {behind}
    assert stage.history(behind) == ["submitted", "ungated"]
    stage.succeed(behind)
    stage.pass_()
    assert stage.launched == [waits]


@pytest.mark.parametrize(
    ("bad", "counted"),
    [
        ({"team": "green", "pool": "a100", "gpus": 6}, 6),
        ({"team": "red", "pool": "a100", "gpus": 64}, 8),
        ({"team": "red", "pool": "a100", "gpus": 6, "tier": "platinum"}, 6),
        ({"pool": "a100", "gpus": 6}, 6),
        ({"team": "red", "pool": "a100", "gpus": 6, "gpus_per_node": "many"}, 6),
    ],
)
def test_what_would_have_been_refused_is_counted_as_far_as_its_tags_say(
    stage: Stage, bad: dict[str, Any], counted: int
) -> None:
    stranger = stage.enqueue(location="nobodys", **bad)
    stage.start(stranger)
    waits = stage.submit(team="blue", pool="a100", gpus=4)

    stage.pass_()
    stage.pass_()

    (lease,) = stage.leases(stranger)
    assert (lease.ungated, lease.pool, lease.gpus) == (True, "a100", counted * 1000)
    assert stage.launched == []
    (said,) = stage.log.said()
    assert f"uses {counted} × a100 without a grant" in said
    stage.succeed(stranger)
    stage.pass_()
    assert stage.launched == [waits]


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (
            {"pool": "h900", "gpus": 6},
            "which pool its 6 GPUs are in is not known (tag gpufair/pool: 'h900')",
        ),
        ({"pool": "a100", "gpus": "many"}, "gpufair/gpus is 'many'"),
    ],
)
def test_what_cannot_be_counted_is_said_loudly_once_and_in_the_ledger(
    stage: Stage, bad: dict[str, Any], why: str
) -> None:
    stranger = stage.enqueue(team="red", **bad)
    stage.start(stranger)

    stage.pass_()
    stage.pass_()

    (said,) = stage.log.said()
    assert f"Run {stranger} uses GPUs without a grant, and they cannot be counted" in said
    assert why in said
    assert list(stage.said("uncounted")) == [stranger]
    assert why in stage.said("uncounted")[stranger]

    stage.succeed(stranger)
    stage.pass_()
    assert stage.said("uncounted") == {}


def test_what_cannot_be_counted_is_once_the_policy_knows_its_pool(stage: Stage) -> None:
    stranger = stage.enqueue(team="red", pool="h900", gpus=6)
    stage.start(stranger)
    stage.pass_()
    assert stage.holders() == set()

    stage.write_policy("pools: {h900: {nodes: {n1: 8}}}\nteams: {red: {quota: {h900: 8}}}")
    stage.pass_()

    assert stage.holders() == {stranger}
    assert stage.said("uncounted") == {}


def test_a_run_that_goes_on_after_its_lease_keeps_its_place(open_stage: OpenStage) -> None:
    """It is found running after its end was seen: on the nodes that it had, not on any."""
    stage = open_stage("""
        pools: {a100: {nodes: {n1: 4, n2: 4}}}
        teams: {red: {quota: {a100: 8}}}
    """)
    elsewhere, run_id = (stage.submit(team="red", pool="a100", gpus=4) for _ in range(2))
    stage.pass_()
    (first,) = stage.leases(run_id)
    stage.succeed(run_id)
    stage.pass_()
    assert run_id not in stage.holders()

    stage.start(run_id)
    stage.pass_()

    again = stage.leases(run_id)[-1]
    assert again.ungated
    assert (again.pool, again.gpus, again.nodes) == (first.pool, first.gpus, first.nodes)
    assert stage.holders() == {elsewhere, run_id}


def test_a_run_that_was_queued_without_the_coordinator_is_admitted_or_refused(
    stage: Stage,
) -> None:
    good = stage.enqueue(team="red", pool="a100", gpus=4)
    bad = stage.enqueue(team="red", pool="a100", gpus=64)
    pod = stage.enqueue(**IN_A_POD)

    stage.pass_()

    assert set(stage.launched) == {good, pod}
    assert stage.history(good) == ["submitted", "granted"]
    assert stage.status(bad) == "FAILURE"
    assert "it asks for 64 a100" in stage.events(bad)
    assert stage.tags(bad)["state"] == "refused"
    assert stage.history(bad) == ["refused"]


def test_a_run_that_was_seen_before_it_asked_for_gpus_is_gated(stage: Stage) -> None:
    """What its assets ask for is written on a run in its submission, after it has been created."""
    holds = stage.submit(team="red", pool="a100", gpus=8)
    run = stage.create(team="red")
    stage.pass_()

    stage.instance.add_run_tags(run.run_id, {"gpufair/pool": "a100", "gpufair/gpus": "1"})
    stage.instance.submit_run(run.run_id, stage.context.create_request_context())
    stage.pass_()
    stage.pass_()

    assert stage.launched == [holds]
    assert stage.reason(run.run_id) == "insufficient_gpus"
