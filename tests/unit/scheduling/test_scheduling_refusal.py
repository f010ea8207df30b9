"""What can never start, and what it says."""

from __future__ import annotations

import pytest
from scheduling_builder import ask, policy

from dagster_gpufair.scheduling.refusal import why_never

POOLS = {"h100": {"h1": 8, "h2": 8}, "t4": 16}
TEAMS = {
    "nlp": {"quota": {"h100": 8}},
    "vision": {"quota": {"h100": 4}, "borrow_limit": {"h100": 2, "t4": 0}},
    "red": {"quota": {"h100": 4}, "lend_limit": {"h100": 1}},
}
RULES = policy(POOLS, TEAMS)


@pytest.mark.parametrize(
    ("request_", "code", "says"),
    [
        (ask("q", "nlp", "h10", 1), "unknown_pool", "unknown pool 'h10'; did you mean 'h100'?"),
        (ask("q", "nlpp", "h100", 1), "unknown_team", "unknown team 'nlpp'; did you mean 'nlp'?"),
        (
            ask("q", "nlp", "h100", 1, tier="standrd"),
            "tier_not_allowed",
            "unknown tier 'standrd'; did you mean 'standard'?",
        ),
        (
            ask("q", "nlp", "h100", 17),
            "exceeds_pool",
            "it asks for 17 × h100 on whole nodes, and h100 has 16 in all.",
        ),
        (
            ask("q", "nlp", "h100", 12, per_node=12),
            "no_matching_device",
            "it asks for 12 × h100, 12 on each node, and h100 has 2 nodes of 8.",
        ),
        (
            ask("q", "nlp", "h100", 6, per_node=2),
            "no_matching_device",
            "it asks for 6 × h100, 2 on each node, and h100 has 2 nodes of 8.",
        ),
        (
            ask("q", "vision", "h100", 7),
            "exceeds_limits",
            "and vision may use 6 there: its quota of 4 and 2 borrowed.",
        ),
        (
            ask("q", "vision", "t4", 1),
            "exceeds_limits",
            "and vision may use 0 there: its borrow_limit is 0.",
        ),
        (
            ask("q", "nlp", "h100", 14),
            "exceeds_limits",
            "and nlp may use 13 there: 3 are held back for red.",
        ),
    ],
)
def test_it_is_refused_with_the_numbers(request_, code, says):
    refusal = why_never(RULES, request_)
    assert refusal is not None
    assert refusal[0] == code
    assert says in refusal[1]


@pytest.mark.parametrize(
    "request_",
    [
        ask("q", "nlp", "h100", 13),
        ask("q", "vision", "h100", 6),
        ask("q", "vision", "h100", 8, min_gpus=6),
        ask("q", "vision", "t4,h100", 6),
        ask("q", "nlp", "gone,t4", 16),
        ask("q", "vision", "t4", 16, tier="critical"),
        ask("q", "nlp", "t4", 12, per_node=1),
    ],
)
def test_it_may_wait_if_it_could_ever_start(request_):
    assert why_never(RULES, request_) is None


def test_over_quota_is_refused_where_nobody_borrows():
    code, message = why_never(
        policy(POOLS, TEAMS, borrowing={"mode": "off"}), ask("q", "nlp", "h100", 9)
    )
    assert code == "exceeds_limits"
    assert "nlp may use 8 there: borrowing is off." in message


def test_every_pool_of_its_list_is_told_and_the_first_gives_the_code():
    code, message = why_never(RULES, ask("q", "vision", "h100,t4", 17))
    assert code == "exceeds_pool"
    assert message == (
        "it asks for 17 × h100 on whole nodes, and h100 has 16 in all; "
        "it asks for 17 × t4, and t4 has 16 in all. Ask for fewer GPUs or another pool."
    )
