"""Every reason to wait has a next step, in the terminal and in the docs, and one that the run can take."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dagster_gpufair.cli.explain.next_steps import next_step
from dagster_gpufair.policy.loading import parse_policy
from dagster_gpufair.policy.quantities import parse_moment
from dagster_gpufair.scheduling.cases.case_file import REASONS
from dagster_gpufair.scheduling.explaining.remedies import Remedy
from dagster_gpufair.scheduling.model import Request

DOCS = Path(__file__).parents[4] / "docs" / "waiting.md"
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
    assert large(None) == "`gpufair queue` shows all runs that wait."


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
    assert "; a run that declares less (gpufair/cpus) may start sooner: " in said, (
        "there is no ceiling for memory"
    )


def test_a_bound_helps_where_something_is_kept_for_a_time() -> None:
    assert "or sooner with a short enough `gpufair/max_duration`" in large("lower_priority")
    bounded = large("lower_priority", max_duration=3600.0)
    assert "or sooner with a shorter `gpufair/max_duration`" in bounded
    window = "windows: [{team: nlp, pool: t4, gpus: 1, cron: 0 1 * * *, duration: 1h}]"
    unpassed = "backfill: {enabled: false}\n"
    assert "max_duration" not in small("lower_priority", unpassed)
    assert "max_duration" in small("lower_priority", unpassed + window)
    assert "until when a window lasts" in small("reserve_held", window)
    assert "window" not in small("reserve_held")


def test_a_run_too_large_for_the_fast_lane_is_told_of_no_bound_for_it() -> None:
    lane = "backfill: {enabled: false}\nfast_lane: {t4: {gpus: 4, max_gpus: 2, max_duration: 30m}}"
    assert "max_duration" in small("lower_priority", lane)
    policy = parse_policy(f"pools: {{t4: {{gpus: 16}}}}\nteams: {{nlp: {{}}}}\n{lane}")
    for gpus, is_told in ((2000, True), (3000, False)):
        said = next_step(policy, replace(SMALL, gpus=gpus), "t4", "lower_priority")
        assert ("max_duration" in said) is is_told


def test_a_bound_that_was_tried_in_vain_is_not_named() -> None:
    bound = Remedy("max_duration", 900.0, "h100", 8000)
    for remedies, is_told in ((None, True), ([bound], True), ([], False)):
        said = next_step(POOLS, LARGE, "h100", "lower_priority", remedies=remedies)
        assert ("max_duration" in said) is is_told


@pytest.mark.parametrize(
    "reason", ["borrow_limit", "insufficient_gpus", "fragmented", "reserve_held", "maintenance"]
)
def test_other_tags_may_help_and_are_no_promise(reason: str) -> None:
    said = next_step(POOLS, LARGE, "h100", reason, remedies=[])
    assert " may start sooner" in said
    assert ", or " not in said.replace("back, or other GPUs", "")


QUOTA = """
pools: {h100: {gpus: 16}, t4: {gpus: 16}}
teams: {nlp: {quota: {h100: 4}}, vision: {quota: {t4: 16}}}
borrowing: {mode: off}
"""
GRANT = (
    "grants: [{team: nlp, pool: h100, gpus: 4, from: 2026-06-01T12:00:00Z, "
    "until: 2026-06-02T12:00:00Z, approved_by: ann, reason: deadline}]\n"
)
STARTS = parse_moment("2026-06-01T12:00:00Z").timestamp()


def test_a_quota_that_is_too_small_is_not_freed_by_runs_that_end() -> None:
    said = next_step(parse_policy(QUOTA), LARGE, "h100", "quota_exhausted")
    assert said == (
        "The quota of its team is too small for it, whichever runs end. A run that takes fewer GPUs "
        "(gpufair/gpus: 4) may start sooner. Without a change of its tags it needs a larger quota, a "
        "grant, or permission to borrow: `gpufair teams` shows its quota."
    )
    covered = next_step(parse_policy(QUOTA), replace(LARGE, gpus=4000), "h100", "quota_exhausted")
    assert covered.startswith(
        "It starts once runs of its team end. To run more at once, the team needs"
    )
    nothing = next_step(parse_policy(QUOTA), SMALL, "t4", "quota_exhausted")
    assert "gpufair/gpus" not in nothing
    assert "names one more pool (gpufair/pool: t4,h100)" in nothing


@pytest.mark.parametrize(
    ("now", "says"),
    [
        (STARTS - 60, "until a grant or a window of the team begins"),
        (STARTS, "It starts once runs of its team end."),
        (STARTS + 2 * 86400, "too small for it, whichever runs end"),
    ],
)
def test_a_grant_that_is_to_come_is_what_it_waits_for(now: float, says: str) -> None:
    policy = parse_policy(QUOTA + GRANT)
    assert says in next_step(policy, LARGE, "h100", "quota_exhausted", now=now)


@pytest.mark.parametrize("changed", [{"team": "gone"}, {"tier": "gone"}])
def test_what_the_policy_no_longer_has_cannot_be_waited_for(changed: dict[str, str]) -> None:
    assert "once the policy has its team, tier and pool again" in large(
        "quota_exhausted", **changed
    )


def test_a_pool_that_is_no_more_frees_nothing() -> None:
    said = next_step(ONE_POOL, LARGE, "h100", "environment")
    assert "once the policy has its team, tier and pool again" in said
