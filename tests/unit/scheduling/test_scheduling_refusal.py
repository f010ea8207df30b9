"""What can never start, and what it says."""

from __future__ import annotations

import pytest
from scheduling_builder import ask, policy

from dagster_gpufair.scheduling.explaining.refusal import why_invalid, why_never

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
            "it asks for 17 h100 on whole nodes, and h100 has 16 GPUs in all.",
        ),
        (
            ask("q", "nlp", "h100", 12, per_node=12),
            "no_matching_device",
            "it asks for 12 h100, 12 on each node, and h100 has 2 nodes of 8 GPUs.",
        ),
        (
            ask("q", "nlp", "h100", 6, per_node=2),
            "no_matching_device",
            "it asks for 6 h100, 2 on each node, and h100 has 2 nodes of 8 GPUs.",
        ),
        (
            ask("q", "vision", "h100", 7),
            "exceeds_limits",
            "and vision may use at most 6 (a quota of 4 and a borrow limit of 2).",
        ),
        (
            ask("q", "vision", "t4", 1),
            "exceeds_limits",
            "and vision has no quota, and its borrow_limit is 0.",
        ),
        (
            ask("q", "nlp", "h100", 14),
            "exceeds_limits",
            "and nlp may use at most 13: 3 GPUs are held back for red.",
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
    assert "nlp may use at most its quota of 8, and borrowing is off." in message


def test_every_pool_of_its_list_is_told_and_the_first_gives_the_code():
    code, message = why_never(RULES, ask("q", "vision", "h100,t4", 17))
    assert code == "exceeds_pool"
    assert message == (
        "it asks for 17 h100 on whole nodes, and h100 has 16 GPUs in all; "
        "it asks for 17 t4, and t4 has 16 GPUs in all. Ask for fewer GPUs or another pool."
    )


MORE = {
    "team": "red",
    "pool": "t4",
    "gpus": 8,
    "approved_by": "ops",
    "reason": "paper",
}
NEXT_WEEK = {"from": "2027-01-22T08:00:00Z", "until": "2027-01-23T08:00:00Z"}
NOW_IN_FORCE = {"from": "2027-01-15T00:00:00Z", "until": "2027-01-16T00:00:00Z"}
"""`NOW` of the builder is in it."""


def test_what_a_grant_will_cover_may_wait_for_it():
    no_borrowing = {"borrowing": {"mode": "off"}}
    teams = {"red": {"quota": {"t4": 4}}}
    request = ask("q", "red", "t4", 8)
    assert why_never(policy({"t4": 16}, teams, **no_borrowing), request) is not None
    granted = policy({"t4": 16}, teams, grants=[MORE | NEXT_WEEK], **no_borrowing)
    assert why_never(granted, request) is None


def test_a_window_of_another_team_passes():
    window = {"team": "red", "pool": "t4", "gpus": 16} | NOW_IN_FORCE
    rules = policy({"t4": 16}, {"red": {}, "blue": {}}, windows=[window])
    assert why_never(rules, ask("q", "blue", "t4", 4)) is None


def test_what_the_fast_lane_keeps_is_for_nothing_large():
    lane = {"t4": {"gpus": 2, "max_gpus": 1, "max_duration": "30m"}}
    rules = policy({"t4": 4}, {"red": {"quota": {"t4": 4}}}, fast_lane=lane)
    assert why_never(rules, ask("q", "red", "t4", 2)) is None
    code, says = why_never(rules, ask("q", "red", "t4", 3))
    assert code == "exceeds_limits"
    assert "red may use at most 2: 2 are in the fast lane" in says


def test_what_alone_declares_more_than_a_ceiling_never_starts():
    rules = policy({"t4": 4}, {"red": {"quota": {"t4": 4}, "ceilings": {"cpus": 64}}})
    assert why_never(rules, ask("q", "red", "t4", 1, cpus=64)) is None
    code, says = why_never(rules, ask("q", "red", "t4", 1, cpus=65))
    assert code == "exceeds_limits"
    assert "red has a ceiling of 64 CPUs: this run needs 65" in says


def test_a_project_may_use_what_its_team_has():
    projects = {"base": {"quota": {"t4": 2}, "borrow_limit": {"t4": 1}}}
    rules = policy({"t4": 8}, {"red": {"quota": {"t4": 8}, "projects": projects}})
    assert why_never(rules, ask("q", "red", "t4", 3, project="base")) is None
    code, says = why_never(rules, ask("q", "red", "t4", 4, project="base"))
    assert code == "exceeds_limits"
    assert "red/base may use at most 3 (a quota of 2 and a borrow limit of 1)" in says


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        (
            ask("q", "nlp", "h100", 1, project="pretrian"),
            "unknown project of team nlp 'pretrian'; did you mean 'pretrain'? (known: pretrain).",
        ),
        (ask("q", "nlp", "h100", 1, project="pretrain"), None),
        (ask("q", "nlp", "h100", 1), None),
        (
            ask("q", "vision", "h100", 1, project="any"),
            "team vision has no projects, and the run names 'any'. Leave the project out, or ask the "
            "platform team to add it to teams.vision.projects: it needs no quota.",
        ),
        (ask("q", "gone", "h100", 1, project="any"), None),
        (
            ask("q", "nlp", "h100", 3, per_node=2),
            "it asks for 3 GPUs, which cannot be split into 2 on each node: make gpus a multiple of "
            "gpus_per_node.",
        ),
        (ask("q", "nlp", "h100", 0.5, per_node=8), "it asks for 0.5 GPUs, which cannot be split"),
        (
            ask("q", "nlp", "h100", 4, min_gpus=1, per_node=2),
            "it asks for 1 GPU, which cannot be split",
        ),
        (ask("q", "nlp", "h100", 4, min_gpus=2, per_node=2), None),
    ],
)
def test_what_no_run_may_ask_for_though_it_could_start(request_, says):
    rules = policy(POOLS, TEAMS | {"nlp": {"projects": {"pretrain": {}}}})
    said = why_invalid(rules, request_)
    assert said is says is None or said.startswith(says)
