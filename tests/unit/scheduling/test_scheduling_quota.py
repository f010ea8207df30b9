"""Who may start: quota, borrowing, what is held back, urgency."""

from __future__ import annotations

import pytest
from scheduling_builder import ask, decide, holds, policy

from dagster_gpufair.scheduling.model import Class

RED_AND_BLUE = {"red": {"quota": {"t4": 4}}, "blue": {"quota": {"t4": 4}}}


def test_a_team_starts_within_its_quota_while_another_borrows_the_rest():
    result = decide(
        policy({"t4": 8}, RED_AND_BLUE),
        [
            ask("borrows", "blue", "t4", 4, waited="3d"),
            ask("mine", "red", "t4", 4, waited="1m"),
        ],
        [holds("r1", "blue", "t4", 4)],
    )
    assert result.started == ["mine"]
    assert result.start("mine").class_ is Class.GUARANTEED
    assert result.reasons == {"borrows": "insufficient_gpus"}


def test_what_is_partly_above_the_quota_is_borrowed_whole():
    result = decide(policy({"t4": 8}, RED_AND_BLUE), [ask("q", "red", "t4", 5)])
    assert result.start("q").class_ is Class.BORROWING


def test_a_small_request_is_guaranteed_where_a_large_one_would_borrow():
    result = decide(
        policy({"t4": 8}, RED_AND_BLUE),
        [
            ask("large", "red", "t4", 3, tier="standard", waited="9h"),
            ask("small", "red", "t4", 1, tier="exploratory"),
        ],
        [holds("r1", "red", "t4", 3)],
    )
    assert result.started == ["small", "large"]
    assert result.start("large").class_ is Class.BORROWING


def test_with_borrowing_off_idle_gpus_stay_idle():
    rules = policy({"t4": 8}, RED_AND_BLUE, borrowing={"mode": "off"})
    result = decide(rules, [ask("q", "red", "t4", 1)], [holds("r1", "red", "t4", 4)])
    assert result.reasons == {"q": "quota_exhausted"}


@pytest.mark.parametrize(
    ("borrowing", "allowed"),
    [
        ({}, True),
        ({"tiers": ["standard"]}, True),
        ({"tiers": ["milestone"]}, False),
        ({"kinds": ["training"]}, True),
        ({"kinds": ["evaluation"]}, False),
    ],
)
def test_only_tiers_and_kinds_that_may_borrow_do(borrowing, allowed):
    rules = policy({"t4": 8}, RED_AND_BLUE, borrowing=borrowing)
    queued = [ask("q", "red", "t4", 1, kind="training")]
    result = decide(rules, queued, [holds("r1", "red", "t4", 4)])
    assert result.reasons == ({} if allowed else {"q": "quota_exhausted"})


def test_work_without_a_kind_does_not_borrow_where_kinds_are_listed():
    rules = policy({"t4": 8}, RED_AND_BLUE, borrowing={"kinds": ["training"]})
    result = decide(rules, [ask("q", "red", "t4", 5)])
    assert result.reasons == {"q": "quota_exhausted"}


def test_a_team_borrows_up_to_its_limit():
    teams = {"red": {"quota": {"t4": 4}, "borrow_limit": {"t4": 2}}}
    result = decide(
        policy({"t4": 8}, teams),
        [ask("fifth", "red", "t4", 1), ask("two", "red", "t4", 2), ask("sixth", "red", "t4", 1)],
        [holds("r1", "red", "t4", 4)],
    )
    assert result.started == ["fifth", "sixth"]
    assert result.reasons == {"two": "borrow_limit"}


def test_a_borrow_limit_of_nothing_is_no_leave_to_borrow():
    teams = {"red": {"quota": {"t4": 4}, "borrow_limit": {"t4": 0}}}
    result = decide(policy({"t4": 8}, teams), [ask("q", "red", "t4", 5)])
    assert result.reasons == {"q": "quota_exhausted"}


def test_a_team_keeps_what_it_does_not_lend():
    teams = {"red": {"quota": {"t4": 4}, "lend_limit": {"t4": 1}}, "blue": {}}
    queued = [ask("b1", "blue", "t4", 5, waited="1h"), ask("b2", "blue", "t4", 1)]
    result = decide(policy({"t4": 8}, teams), queued)
    assert result.started == ["b1"]
    assert result.reasons == {"b2": "reserve_held"}


def test_what_a_team_already_uses_is_not_held_back_for_it_again():
    teams = {"red": {"quota": {"t4": 4}, "lend_limit": {"t4": 0}}, "blue": {}}
    running = [holds("r1", "red", "t4", 3)]
    result = decide(
        policy({"t4": 8}, teams), [ask("b1", "blue", "t4", 4), ask("b2", "blue", "t4", 1)], running
    )
    assert result.started == ["b1"]
    assert result.reasons == {"b2": "reserve_held"}


def test_a_team_starts_on_what_is_held_back_for_itself():
    teams = {"red": {"quota": {"t4": 4}, "lend_limit": {"t4": 0}}, "blue": {}}
    running = [holds("r1", "blue", "t4", 4)]
    result = decide(policy({"t4": 8}, teams), [ask("mine", "red", "t4", 4)], running)
    assert result.started == ["mine"]


def test_what_is_held_back_shrinks_with_the_pool():
    """Half of the quotas' GPUs are ready: a reserve of 8 is one of 4."""
    teams = {
        "red": {"quota": {"h100": 8}, "lend_limit": {"h100": 0}},
        "blue": {"quota": {"h100": 8}},
    }
    rules = policy({"h100": {"h1": 8, "h2": 8}}, teams)
    queued = [ask("b1", "blue", "h100", 4, waited="1h"), ask("b2", "blue", "h100", 1)]
    result = decide(rules, queued, cordoned={"h100": ["h2"]})
    assert result.started == ["b1"]
    assert result.reasons == {"b2": "maintenance"}


def test_urgent_work_starts_above_every_limit_on_borrowing():
    teams = {"ops": {"tiers": ["critical"], "borrow_limit": {"t4": 0}}, "red": {"quota": {"t4": 4}}}
    rules = policy({"t4": 4}, teams, borrowing={"mode": "off"})
    queued = [
        ask("mine", "red", "t4", 4, waited="3d"),
        ask("fire", "ops", "t4", 2, tier="critical", waited="0s"),
    ]
    result = decide(rules, queued)
    assert result.started == ["fire"]
    assert result.start("fire").class_ is Class.URGENT


def test_urgent_work_leaves_alone_what_is_held_back_for_others():
    teams = {
        "ops": {"tiers": ["critical"]},
        "red": {"quota": {"t4": 4}, "lend_limit": {"t4": 0}},
    }
    result = decide(policy({"t4": 4}, teams), [ask("fire", "ops", "t4", 1, tier="critical")])
    assert result.reasons == {"fire": "reserve_held"}


def test_what_is_blocked_from_outside_keeps_its_reason_and_takes_nothing():
    blocked = {"q1": ("environment", "the code location cv_jobs is not reachable.")}
    queued = [ask("q1", "red", "t4", 4, waited="1h"), ask("q2", "red", "t4", 4)]
    result = decide(policy({"t4": 4}, RED_AND_BLUE), queued, blocked=blocked)
    assert result.started == ["q2"]
    assert result.reasons == {"q1": "environment"}
    assert result.message("q1") == "the code location cv_jobs is not reachable."


def test_requests_alike_but_for_what_blocks_them_are_told_apart():
    blocked = {"q2": ("paused", "nlp is paused.")}
    queued = [ask(f"q{at}", "red", "t4", 1) for at in (1, 2, 3)]
    result = decide(policy({"t4": 1}, RED_AND_BLUE), queued, blocked=blocked)
    assert result.started == ["q1"]
    assert result.reasons == {"q2": "paused", "q3": "insufficient_gpus"}
