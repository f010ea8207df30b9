"""Every reason to wait has a next step, in the terminal and in the docs, and one that the run can take."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dagster_gpufair.cli.next_steps import next_step
from dagster_gpufair.policy import parse_policy
from dagster_gpufair.scheduling.case_format import REASONS
from dagster_gpufair.scheduling.model import Request

DOCS = Path(__file__).parents[3] / "docs" / "waiting.md"
POOLS = parse_policy("""
pools: {h100: {nodes: {h1: 8, h2: 8}}, a100: {nodes: {a1: 8}}, t4: {gpus: 2}}
teams: {nlp: {quota: {h100: 8}, ceilings: {cpus: 64}}}
""")
ONE_POOL = parse_policy("""
pools: {t4: {gpus: 16}}
teams: {nlp: {quota: {t4: 8}, ceilings: {cpus: 64}}}
""")
LARGE = Request("q1", "nlp", "standard", ("h100",), 8000, submitted=0.0)
SMALL = replace(LARGE, pools=("t4",), gpus=1000)


def large(reason: str | None, **changed: object) -> str:
    """What is said to a run of 8 where there are several pools."""
    return next_step(POOLS, replace(LARGE, **changed), "h100", reason)


def small(reason: str, text: str = "") -> str:
    """What is said to a run of 1 GPU where there is one pool, without nodes."""
    policy = parse_policy(f"pools: {{t4: {{gpus: 16}}}}\nteams: {{nlp: {{}}}}\n{text}")
    return next_step(policy, SMALL, "t4", reason)


@pytest.mark.parametrize("reason", REASONS)
def test_each_reason_has_its_own(reason: str) -> None:
    assert large(reason) != large(None)
    assert f"`{reason}`" in DOCS.read_text(encoding="utf-8")


def test_what_starts_at_once_has_a_next_step_too() -> None:
    assert large(None) == "`gpufair queue` shows the whole line."


@pytest.mark.parametrize("reason", REASONS)
def test_a_small_run_in_the_only_pool_is_told_of_no_tag_that_would_not_help(reason: str) -> None:
    said = small(reason, "backfill: {enabled: false}")
    assert "gpufair/" not in said
    assert " (" not in said


def test_a_large_run_may_be_smaller_or_elsewhere() -> None:
    """Elsewhere is where it fits: t4 has 2 GPUs."""
    assert large("insufficient_gpus") == (
        "A run that names one more pool (gpufair/pool: h100,a100) or takes fewer GPUs (gpufair/gpus: "
        "4-8) may start sooner: `gpufair pools` shows what is free."
    )
    named_all = large("insufficient_gpus", pools=("h100", "a100"))
    assert "gpufair/pool" not in named_all
    assert "(gpufair/gpus: 4-8)" in named_all
    assert small("insufficient_gpus") == (
        "It starts once as many are free: `gpufair pools` shows what is free."
    )


def test_a_run_that_takes_fewer_already_may_take_fewer_still() -> None:
    assert "(gpufair/gpus: 2-8)" in large("borrow_limit", min_gpus=4000)
    assert "gpufair/gpus" not in large("borrow_limit", min_gpus=1000)
    assert "(gpufair/gpus: 8-16)" in large("borrow_limit", gpus=16000, gpus_per_node=8000)
    assert "gpufair/gpus" not in large("borrow_limit", gpus_per_node=8000)


def test_a_team_that_may_not_use_another_pool_is_not_sent_there() -> None:
    policy = parse_policy("""
    pools: {h100: {gpus: 16}, a100: {gpus: 16}}
    teams: {nlp: {quota: {h100: 8}, borrow_limit: {a100: 0}}}
    """)
    assert "gpufair/pool" not in next_step(policy, LARGE, "h100", "reserve_held")


def test_only_a_pool_with_nodes_can_be_asked_for_less_on_each() -> None:
    assert "on each node (gpufair/gpus_per_node: 4)" in large("fragmented")
    assert "on each node (gpufair/gpus_per_node: 2)" in large("fragmented", gpus_per_node=4000)
    assert "gpus_per_node" not in large("fragmented", gpus_per_node=1000)
    without = next_step(ONE_POOL, replace(LARGE, pools=("t4",)), "t4", "fragmented")
    assert "gpus_per_node" not in without


def test_only_what_is_declared_and_limited_can_be_less() -> None:
    assert "declares" not in large("ceiling")
    said = large("ceiling", cpus=8.0, memory_gib=64.0)
    assert "if it declares less (gpufair/cpus): " in said, "there is no ceiling for memory"


def test_a_bound_helps_where_something_is_kept_for_a_time() -> None:
    assert "if it says that it is over in time (gpufair/max_duration)" in large("lower_priority")
    bounded = large("lower_priority", max_duration=3600.0)
    assert "if it is over sooner (gpufair/max_duration)" in bounded
    window = "windows: [{team: nlp, pool: t4, gpus: 1, cron: 0 1 * * *, duration: 1h}]"
    unpassed = "backfill: {enabled: false}\n"
    assert "max_duration" not in small("lower_priority", unpassed)
    assert "max_duration" in small("lower_priority", unpassed + window)
    assert "until when a window lasts" in small("reserve_held", window)
    assert "window" not in small("reserve_held")


@pytest.mark.parametrize("changed", [{"team": "gone"}, {"tier": "gone"}])
def test_what_the_policy_no_longer_has_cannot_be_waited_for(changed: dict[str, str]) -> None:
    assert "once the policy has its team, tier and pool again" in large(
        "quota_exhausted", **changed
    )


def test_a_pool_that_is_no_more_frees_nothing() -> None:
    said = next_step(ONE_POOL, LARGE, "h100", "insufficient_gpus")
    assert "once the policy has its team, tier and pool again" in said
