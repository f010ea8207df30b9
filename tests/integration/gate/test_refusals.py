"""Runs that can never start: failed at once with the reason, and nothing is raised, lost or retried."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest
from gate_stage import Stage, in_child, stage_at

POLICY = """
pools: {a100: {nodes: {n1: 8, n2: 8}}, t4: {gpus: 4}}
teams:
  red: {quota: {a100: 4, t4: 2}, borrow_limit: {a100: 4}}
  blue: {quota: {a100: 4}, tiers: [milestone, standard]}
  owners: {code_locations: [theirs], quota: {t4: 1}}
"""


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """One stage for all: a refused run leaves nothing behind that another could notice."""
    home = tmp_path_factory.mktemp("refusals")
    storage = {"sqlite": {"base_dir": str(home)}}
    with stage_at(home, storage, POLICY, run_retries={"enabled": True, "max_retries": 3}) as stage:
        yield stage


def of_red(**tags: Any) -> dict[str, Any]:
    return {"team": "red", "pool": "t4", "gpus": 1, **tags}


def in_a_pod(limits: Any) -> dict[str, str]:
    """Tags of a run that asks in its container's limits."""
    config = {"container_config": {"resources": {"limits": limits}}}
    return {"team": "red", "pool": "t4", "dagster-k8s/config": json.dumps(config)}


@pytest.mark.parametrize(
    ("tags", "code", "says"),
    [
        (
            of_red(team="rde"),
            "unknown_team",
            "unknown team 'rde'; did you mean 'red'? (known: red, ",
        ),
        (of_red(pool="t5"), "unknown_pool", "unknown pool 't5' (known: a100, t4)"),
        (of_red(tier="milestone"), "tier_not_allowed", "has standard, exploratory"),
        (
            of_red(gpus=-1),
            "invalid_request",
            "'-1', which is no number of GPUs; write 8, 0.5, or 4-8",
        ),
        (of_red(gpus=5), "exceeds_pool", "it asks for 5 t4, and t4 has 4 GPUs in all"),
        (of_red(pool="a100", gpus=9), "exceeds_limits", "a quota of 4 and a borrow limit of 4"),
        (of_red(gpus=4, gpus_per_node=3), "invalid_request", "does not divide into such nodes"),
        (
            of_red(project="pretrain"),
            "invalid_request",
            "team red has no projects, and the run names",
        ),
        ({"team": "red", "gpu": 8}, "invalid_request", "did you mean 'gpufair/gpus'?"),
        (
            of_red(location="theirs"),
            "invalid_request",
            "code location 'theirs' belongs to team 'owners'",
        ),
        (of_red(team="owners"), "invalid_request", "runs come from the code locations theirs"),
        (in_a_pod({"nvidia.com/gpu": "x"}), "invalid_request", "is not a whole number from 1"),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_a_run_that_can_never_start_is_failed_with_the_reason(
    stage: Stage, tags: dict[str, Any], code: str, says: str
) -> None:
    run_id = stage.submit(**tags)

    assert stage.status(run_id) == "FAILURE"
    assert "dagster-gpufair refused this run: " in stage.events(run_id)
    assert says in stage.events(run_id)
    assert stage.tags(run_id)["state"] == "refused"
    assert stage.tags(run_id)["reason"] == code
    request = stage.request(run_id)
    assert request is not None
    assert (request.state, request.refusal_code) == ("refused", code)
    assert says in (request.refusal_message or "")
    assert stage.history(run_id) == ["refused"]


@pytest.mark.parametrize("had", [{}, {"dagster/max_retries": 7}])
def test_a_refused_run_is_not_retried(stage: Stage, had: dict[str, Any]) -> None:
    run_id = stage.submit(**of_red(gpus=0), **had)

    tags = stage.run(run_id).tags
    assert tags["dagster/will_retry"] == "false"
    # Copied to whatever re-executes it, so it is as the user had it, or as the instance has it.
    assert tags["dagster/max_retries"] == str(had.get("dagster/max_retries", 3))


def test_gpus_in_the_limits_of_a_container_count(stage: Stage) -> None:
    run_id = stage.submit(**in_a_pod({"nvidia.com/gpu": 2}))

    assert stage.status(run_id) == "QUEUED"
    request = stage.request(run_id)
    assert request is not None and request.gpus == 2000
    assert stage.tags(run_id)["state"] == "waiting"


def test_a_container_that_cannot_be_read_is_dagsters_own_matter(stage: Stage) -> None:
    run_id = stage.submit(**{"team": "red", "dagster-k8s/config": '{"a":' * 50_000})

    assert stage.status(run_id) == "QUEUED"
    assert stage.request(run_id) is None


def test_a_re_execution_starts_clean(stage: Stage) -> None:
    refused = stage.submit(**of_red(gpus=64))
    copied = {key: value for key, value in stage.run(refused).tags.items() if "/" in key}

    again = stage.submit(parent=refused, **{**copied, "gpufair/gpus": "1"})

    assert stage.status(again) == "QUEUED"
    assert stage.tags(again)["state"] == "waiting"
    assert stage.tags(again)["reason"] == "submitted"
    request = stage.request(again)
    assert request is not None and request.state == "queued"


def test_a_refusal_that_was_recorded_and_not_acted_on_is_acted_on(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = stage.create(**of_red(gpus=64))
    with monkeypatch.context() as dying:
        dying.setattr("dagster_gpufair.gate.submission.coordinator.refuse", lambda *_: os._exit(9))
        workspace = stage.context.create_request_context()
        assert in_child(lambda: stage.instance.submit_run(run.run_id, workspace)) == 9

    stage.pass_()
    assert stage.status(run.run_id) == "NOT_STARTED", "its submission may be going on"
    request = stage.request(run.run_id)
    assert request is not None and request.finished_at is not None
    stage.pass_(at=request.finished_at + 61)

    assert stage.status(run.run_id) == "FAILURE"
    assert "t4 has 4 GPUs in all" in stage.events(run.run_id)
    assert stage.history(run.run_id) == ["refused"]
