"""Who edits the policy is told which runs go by names that the new file has no more."""

from __future__ import annotations

import pytest

from dagster_gpufair.policy.left_behind import Work, left_behind
from dagster_gpufair.policy.loading import parse_policy

OLD = """
pools: {h100: {nodes: {h1: 8, h2: 8}}, t4: {gpus: 8}}
teams: {nlp: {quota: {h100: 8}}, vision: {quota: {t4: 4}}}
tiers: {urgent: {points: 3500}}
"""
HOLDING = [
    Work("a", "nlp", "standard", ("h100",), ("h1",)),
    Work("b", "vision", "urgent", ("h100",), ("h2",)),
    Work("c", "vision", "standard", ("t4",)),
]
WAITING = [
    Work("d", "nlp", "urgent", ("h100", "t4")),
    Work("e", "vision", "standard", ("t4",)),
]


def changed(*replaced: tuple[str, str]) -> list[tuple[str, str, list[str], list[str]]]:
    new = OLD
    for before, after in replaced:
        assert before in new
        new = new.replace(before, after)
    found = left_behind(parse_policy(OLD), parse_policy(new), HOLDING, WAITING)
    return [(each.path, each.message, list(each.holding), list(each.waiting)) for each in found]


@pytest.mark.parametrize(
    ("replaced", "left"),
    [
        ([], []),
        ([("quota: {h100: 8}", "quota: {h100: 2}")], []),
        (
            [("t4: {gpus: 8}", "t4s: {gpus: 8}"), ("{t4: 4}", "{t4s: 4}")],
            # The run that also takes h100 can still start there.
            [("pools.t4", "pool t4 is gone; did you mean 't4s'?", ["c"], ["e"])],
        ),
        (
            [("h100: {nodes", "big: {nodes"), ("{h100: 8}", "{big: 8}")],
            [("pools.h100", "pool h100 is gone, and its nodes are in big now", ["a", "b"], [])],
        ),
        (
            [("h2: 8", "h3: 8")],
            [("pools.h100.nodes.h2", "node h2 of h100 is gone", ["b"], [])],
        ),
        (
            [("vision:", "visions:")],
            [("teams.vision", "team vision is gone; did you mean 'visions'?", ["b", "c"], ["e"])],
        ),
        (
            [("tiers: {urgent: {points: 3500}}", "")],
            [("tiers.urgent", "tier urgent is gone", ["b"], ["d"])],
        ),
    ],
    ids=["nothing", "a quota", "a pool", "a pool's name", "a node", "a team", "a tier"],
)
def test_what_is_gone_names_the_runs_that_go_by_it(replaced, left):
    assert changed(*replaced) == left


def test_a_node_that_moves_to_another_pool_is_not_gone():
    assert changed(("h1: 8, h2: 8}}", "h1: 8}}, big: {nodes: {h2: 8}}")) == []


def test_what_the_policy_before_it_did_not_know_either_is_not_this_changes_doing():
    stranger = [Work("z", "ops", "critical", ("a100",))]
    policy = parse_policy(OLD)
    assert left_behind(policy, policy, stranger, stranger) == []
