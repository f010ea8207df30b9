"""Who comes first: classes, the surplus by weight, and each of the points."""

from __future__ import annotations

import pytest
from scheduling_builder import ask, decide, holds, policy

from dagster_gpufair.scheduling.explaining.places import places
from dagster_gpufair.scheduling.model import Class

ONE_TEAM = {
    "a": {"quota": {"t4": 4}, "tiers": ["critical", "milestone", "standard", "exploratory"]}
}


def order_of(rules, queued, running=(), **more):
    """All that is queued, as it stands in line when nothing can start."""
    result = decide(rules, queued, running, **more)
    assert result.started == []
    place_of = places(result.plan)
    return sorted(place_of, key=lambda id: place_of[id])


def full(pool: str = "t4", gpus: float = 4):
    return holds("full", "nobody", pool, gpus)


def test_tiers_rank_by_their_points():
    tiers = ["exploratory", "standard", "milestone"]
    queued = [ask(tier, "a", "t4", 1, tier=tier) for tier in tiers]
    assert order_of(policy({"t4": 4}, ONE_TEAM), queued, [full()]) == tiers[::-1]


def test_waiting_gains_a_hundred_points_an_hour():
    result = decide(policy({"t4": 4}, ONE_TEAM), [ask("q", "a", "t4", 1, waited="90m")], [full()])
    assert result.waiting("q").points.wait == 150


def test_each_start_of_a_source_sends_the_rest_of_it_back_in_the_line():
    queued = [
        ask("b1", "a", "t4", 1, waited="10h", source="backfill-7"),
        ask("b2", "a", "t4", 1, waited="10h", source="backfill-7"),
        ask("b3", "a", "t4", 1, waited="10h", source="backfill-7"),
        ask("single", "a", "t4", 1, waited="5m", source="eval"),
    ]
    assert decide(policy({"t4": 2}, ONE_TEAM), queued).started == ["b1", "single"]


def test_a_source_that_has_just_started_something_waits_since_then():
    queued = [
        ask("b", "a", "t4", 1, waited="10h", source="backfill-7"),
        ask("single", "a", "t4", 1, waited="5m", source="eval"),
    ]
    assert order_of(
        policy({"t4": 4}, ONE_TEAM),
        queued,
        [full()],
        source_starts={("a", "backfill-7"): 1.8e9 - 60},
    ) == ["single", "b"]


def test_another_teams_source_of_the_same_name_is_another_source():
    rules = policy({"t4": 4}, {"a": {"quota": {"t4": 2}}, "b": {"quota": {"t4": 2}}})
    queued = [ask("q", "a", "t4", 1, waited="2h", source="job")]
    result = decide(rules, queued, [full(), holds("r", "b", "t4", 1, since="1h", source="job")])
    points = result.waiting("q").points
    assert (points.wait, points.source) == (200, 0)


def test_a_source_loses_points_by_its_part_of_the_accounts_use():
    running = [holds("r1", "a", "t4", 1, source="s"), holds("r2", "a", "t4", 3, source="t")]
    result = decide(policy({"t4": 4}, ONE_TEAM), [ask("q", "a", "t4", 1, source="s")], running)
    assert result.waiting("q").points.source == -50


def test_a_request_without_a_source_is_one_of_its_own():
    queued = [ask("q", "a", "t4", 1, waited="3h")]
    result = decide(policy({"t4": 4}, ONE_TEAM), queued, [holds("r", "a", "t4", 4, since="1h")])
    points = result.waiting("q").points
    assert (points.wait, points.source) == (300, 0)


@pytest.mark.parametrize(("times", "points"), [(0, 0), (1, 300), (3, 900), (4, 900)])
def test_each_preemption_counts_up_to_three(times, points):
    queued = [ask("q", "a", "t4", 1, preempted=times)]
    result = decide(policy({"t4": 4}, ONE_TEAM), queued, [full()])
    assert result.waiting("q").points.preempted == points


@pytest.mark.parametrize(
    ("waited", "points"), [("30m", 0), ("1h", 0), ("90m", 250), ("2h", 500), ("3d", 500)]
)
def test_nearing_the_committed_start_counts_from_half_of_it(waited, points):
    queued = [ask("q", "a", "t4", 1, tier="milestone", waited=waited)]
    result = decide(policy({"t4": 4}, ONE_TEAM), queued, [full()])
    assert result.waiting("q").points.deadline == points


def test_a_tier_without_a_committed_start_gains_nothing_by_it():
    queued = [ask("q", "a", "t4", 1, tier="exploratory", waited="90d")]
    result = decide(policy({"t4": 4}, ONE_TEAM), queued, [full()])
    assert result.waiting("q").points.deadline == 0


def test_equal_requests_go_by_submission_then_by_id():
    queued = [
        ask("c", "a", "t4", 1, waited="1m"),
        ask("b", "a", "t4", 1, waited="1m"),
        ask("d", "a", "t4", 1, waited="2m"),
    ]
    assert order_of(policy({"t4": 4}, ONE_TEAM), queued, [full()]) == ["d", "b", "c"]


def test_requests_that_are_alike_let_others_in_between():
    queued = [
        ask("one", "a", "t4", 1, waited="5h"),
        ask("two", "a", "t4", 2, waited="3h"),
        ask("three", "a", "t4", 1, waited="1h"),
    ]
    assert order_of(policy({"t4": 4}, ONE_TEAM), queued, [full()]) == ["one", "two", "three"]


def test_places_are_counted_in_each_pool():
    queued = [ask("p", "a", "t4", 1), ask("q", "a", "h100", 1), ask("r", "a", "h100", 2)]
    rules = policy({"t4": 4, "h100": 4}, ONE_TEAM)
    result = decide(rules, queued, [full(), holds("full2", "nobody", "h100", 4)])
    assert places(result.plan) == {"p": ("t4", 1), "q": ("h100", 1), "r": ("h100", 2)}


def test_quota_comes_before_points():
    teams = {"a": {"quota": {"t4": 4}}, "b": {}}
    queued = [ask("borrows", "b", "t4", 1, waited="90d"), ask("mine", "a", "t4", 1, waited="0s")]
    assert order_of(policy({"t4": 4}, teams), queued, [full()]) == ["mine", "borrows"]


def test_surplus_goes_to_who_has_least_of_it_for_its_weight():
    """a has borrowed 2 and b 1: with one more, 3 by weight 2 are less than 2 by weight 1."""
    teams = {"a": {"weight": 2}, "b": {"weight": 1}}
    running = [holds("r1", "a", "t4", 2), holds("r2", "b", "t4", 1), full(gpus=1)]
    queued = [ask("a", "a", "t4", 1, waited="0s"), ask("b", "b", "t4", 1, waited="9h")]
    assert order_of(policy({"t4": 4}, teams), queued, running) == ["a", "b"]


def test_accounts_with_the_same_surplus_go_by_points():
    running = [holds("r1", "a", "t4", 2), holds("r2", "b", "t4", 2)]
    queued = [ask("a", "a", "t4", 1, waited="0s"), ask("b", "b", "t4", 1, waited="9h")]
    assert order_of(policy({"t4": 4}, {"a": {}, "b": {}}), queued, running) == ["b", "a"]


def test_asking_for_more_at_once_is_no_drawback():
    teams = {"a": {}, "b": {}}
    queued = [ask("gang", "a", "t4", 4, waited="2h"), ask("small", "b", "t4", 1, waited="1h")]
    assert order_of(policy({"t4": 4}, teams), queued, [full()]) == ["gang", "small"]


def test_who_has_borrowed_much_of_late_ranks_lower():
    teams = {"a": {}, "b": {}}
    queued = [ask("a", "a", "t4", 1, waited="5h"), ask("b", "b", "t4", 1)]
    used = {"a": {"t4": 90}, "b": {"t4": 10}}
    result = decide(policy({"t4": 4}, teams), queued, [full()], used=used)
    assert [group.requests[0].id for group in result.plan.waiting] == ["b", "a"]
    # b's part is a half and it had a tenth: (0.5 − 0.1) / 0.5 of the points, and of its weight more.
    assert result.waiting("b").points.share == pytest.approx(400)
    assert result.waiting("b").saturation == pytest.approx(1 / 1.8)
    assert result.waiting("a").points.share == pytest.approx(-400)
    assert result.waiting("a").saturation == pytest.approx(1 / 0.25)


def test_using_ones_own_quota_is_held_against_nobody():
    teams = {"a": {"quota": {"t4": 4}}, "b": {}}
    queued = [ask("a", "a", "t4", 1), ask("b", "b", "t4", 1)]
    result = decide(policy({"t4": 4}, teams), queued, [holds("r", "a", "t4", 4, since="30d")])
    assert result.waiting("a").points.share == result.waiting("b").points.share == 500


def test_a_start_is_judged_by_what_it_found_not_by_what_it_left():
    start = decide(policy({"t4": 4}, {"a": {}}), [ask("q", "a", "t4", 4, waited="1h")]).start("q")
    assert start.class_ is Class.BORROWING
    assert start.saturation == 0.5  # nothing borrowed yet, and double weight for it
    assert start.points.score == 2000 + 100 + 500
