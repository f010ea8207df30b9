"""Where a request starts: pools by liking, sizes, and shapes on nodes."""

from __future__ import annotations

import pytest
from scheduling_builder import ask, decide, holds, policy

from dagster_gpufair.scheduling.model import Class

TEAM = {"a": {"quota": {"h100": 32, "a100": 16}}}
TWO_NODES = {"h1": 8, "h2": 8}


def nodes_of(nodes, request, running=(), **more):
    result = decide(
        policy({"h100": nodes}, {"a": {"quota": {"h100": 64}}}), [request], running, **more
    )
    return result.start(request.id).nodes if result.started else result.reasons[request.id]


def gang(gpus, **more):
    return ask("q", "a", "h100", gpus, **more)


# Pools and sizes


def test_the_pool_it_likes_best_is_taken_while_it_can():
    rules = policy({"h100": 8, "a100": 8}, TEAM)
    queued = [ask(f"q{at}", "a", "h100,a100", 8, waited=f"{9 - at}m") for at in (1, 2, 3)]
    result = decide(rules, queued)
    assert [(start.request.id, start.pool) for start in result.plan.starts] == [
        ("q1", "h100"),
        ("q2", "a100"),
    ]
    assert result.waiting("q3").pool == "h100"


def test_it_borrows_in_the_pool_it_likes_rather_than_go_elsewhere():
    rules = policy({"h100": 8, "a100": 8}, {"a": {"quota": {"a100": 8}}})
    start = decide(rules, [ask("q", "a", "h100,a100", 4)]).start("q")
    assert (start.pool, start.class_) == ("h100", Class.BORROWING)


def test_its_guarantee_in_a_second_pool_is_safe_while_it_stands_for_the_first():
    """The one place in h100 goes to another: at once it is guaranteed in a100, before b borrows there."""
    teams = {"a": {"quota": {"a100": 4}}, "b": {"quota": {"h100": 4}}}
    queued = [
        ask("mine", "b", "h100", 4, waited="0s"),
        ask("choosy", "a", "h100,a100", 4, waited="0s"),
        ask("borrows", "b", "a100", 4, waited="20d"),
    ]
    result = decide(policy({"h100": 4, "a100": 4}, teams), queued)
    assert result.started == ["mine", "choosy"]
    assert result.start("choosy").pool == "a100"


def test_fewer_gpus_are_taken_when_all_it_asks_for_are_not_there():
    rules = policy({"t4": 8}, {"a": {"quota": {"t4": 8}}})
    start = decide(rules, [ask("q", "a", "t4", 8, min_gpus=3)], [holds("r", "a", "t4", 4)]).start(
        "q"
    )
    assert start.gpus == 3000


def test_fewer_in_the_first_pool_come_before_all_in_the_second():
    rules = policy({"h100": 8, "a100": 8}, TEAM)
    queued = [ask("q", "a", "h100,a100", 8, min_gpus=4)]
    start = decide(rules, queued, [holds("r", "a", "h100", 4)]).start("q")
    assert (start.pool, start.gpus) == ("h100", 4000)


def test_fewer_gpus_may_be_guaranteed_where_all_would_be_borrowed_and_may_not():
    rules = policy({"t4": 8}, {"a": {"quota": {"t4": 4}}}, borrowing={"mode": "off"})
    start = decide(rules, [ask("q", "a", "t4", 8, min_gpus=4)]).start("q")
    assert (start.gpus, start.class_) == (4000, Class.GUARANTEED)


# Shapes


def test_what_fits_a_node_goes_on_the_fullest_that_has_room():
    running = [holds("r1", "a", "h100", 4, on="h1"), holds("r2", "a", "h100", 6, on="h2")]
    assert nodes_of({**TWO_NODES, "h3": 8}, gang(2), running) == {"h2": 2000}
    assert nodes_of({**TWO_NODES, "h3": 8}, gang(3), running) == {"h1": 3000}
    assert nodes_of({**TWO_NODES, "h3": 8}, gang(8), running) == {"h3": 8000}


def test_among_equal_nodes_the_first_by_name_is_taken():
    assert nodes_of({"n10": 8, "n2": 8}, gang(1)) == {"n10": 1000}


def test_parts_of_one_gpu_share_the_fullest_node():
    assert nodes_of(TWO_NODES, gang(0.5), [holds("r", "a", "h100", 7.5, on="h2")]) == {"h2": 500}


def test_what_is_larger_than_a_node_takes_whole_nodes_and_a_rest():
    assert nodes_of({**TWO_NODES, "h3": 8}, gang(20)) == {"h1": 8000, "h2": 8000, "h3": 4000}
    running = [holds("r", "a", "h100", 3, on="h1")]
    assert nodes_of({**TWO_NODES, "h3": 8}, gang(20), running) == {
        "h2": 8000,
        "h3": 8000,
        "h1": 4000,
    }


def test_whole_nodes_must_be_idle():
    running = [holds("r", "a", "h100", 1, on="h1"), holds("s", "a", "h100", 1, on="h2")]
    assert nodes_of({**TWO_NODES, "h3": 8}, gang(16), running) == "fragmented"


def test_nodes_of_several_sizes_are_taken_largest_first():
    assert nodes_of({"big": 8, "s1": 4, "s2": 4}, gang(12)) == {"big": 8000, "s1": 4000}
    assert nodes_of({"big": 8, "s1": 4, "s2": 4}, gang(15)) == {
        "big": 8000,
        "s1": 4000,
        "s2": 3000,
    }


def test_gpus_per_node_fixes_the_split():
    assert nodes_of(TWO_NODES, gang(8, per_node=4)) == {"h1": 4000, "h2": 4000}
    assert nodes_of(TWO_NODES, gang(6, per_node=4)) == {"h1": 4000, "h2": 2000}
    assert nodes_of(TWO_NODES, gang(3, per_node=4)) == {"h1": 3000}
    running = [holds("r", "a", "h100", 5, on="h1")]
    assert nodes_of(TWO_NODES, gang(8, per_node=4), running) == "fragmented"
    assert nodes_of(TWO_NODES, gang(6, per_node=3), running) == {"h1": 3000, "h2": 3000}


def test_in_a_pool_without_nodes_shape_does_not_matter():
    rules = policy({"h100": 16}, TEAM)
    result = decide(rules, [ask("q", "a", "h100", 12, per_node=1)], [holds("r", "a", "h100", 4)])
    assert result.start("q").nodes == {}


# Nodes in maintenance, and leases that say little


def test_a_cordoned_node_takes_nothing_new():
    assert nodes_of(TWO_NODES, gang(4), cordoned={"h100": ["h1"]}) == {"h2": 4000}


def test_the_shape_stays_the_same_while_the_large_node_is_away():
    """Six would fit on one node of eight: they are not split because that one is in maintenance."""
    assert (
        nodes_of({"big": 8, "s1": 4, "s2": 4}, gang(6), cordoned={"h100": ["big"]}) == "maintenance"
    )


def test_a_lease_that_names_no_node_is_where_it_would_be_placed():
    assert nodes_of(TWO_NODES, gang(8), [holds("r", "a", "h100", 6)]) == {"h2": 8000}
    assert nodes_of(TWO_NODES, gang(3), [holds("r", "a", "h100", 6)]) == {"h2": 3000}
    assert nodes_of(TWO_NODES, gang(2), [holds("r", "a", "h100", 6)]) == {"h1": 2000}


def test_a_lease_too_large_for_the_nodes_still_takes_what_it_takes():
    running = [holds("r1", "a", "h100", 5, on="h1"), holds("r2", "a", "h100", 10)]
    assert nodes_of(TWO_NODES, gang(1), running) == {"h1": 1000}
    assert nodes_of(TWO_NODES, gang(2), running) == "insufficient_gpus"


def test_a_lease_on_a_node_that_is_gone_counts_for_the_account_only():
    rules = policy({"h100": {"h1": 8}}, {"a": {"quota": {"h100": 8}}}, borrowing={"mode": "off"})
    running = [holds("r", "a", "h100", 4, on="gone")]
    result = decide(rules, [ask("q1", "a", "h100", 4), ask("q2", "a", "h100", 1)], running)
    assert result.started == ["q1"]
    assert result.start("q1").nodes == {"h1": 4000}
    assert result.reasons == {"q2": "quota_exhausted"}


def test_a_pool_that_shrank_below_its_use_has_nothing_free():
    rules = policy({"t4": 4}, {"a": {"quota": {"t4": 4}}, "b": {}})
    result = decide(rules, [ask("q", "a", "t4", 1)], [holds("r", "b", "t4", 9)])
    assert result.reasons == {"q": "insufficient_gpus"}
    assert "t4 has no free GPUs" in result.message("q")


@pytest.mark.parametrize(
    ("request_", "reason", "says"),
    [
        (ask("q", "gone", "t4", 1), "quota_exhausted", "team gone is not in the policy"),
        (ask("q", "a", "t4", 1, tier="gone"), "quota_exhausted", "tier gone is not in the policy"),
        (
            ask("q", "a", "gone", 1),
            "environment",
            "pool gone is not in the policy (pools: t4)",
        ),
    ],
)
def test_what_names_something_that_is_no_more_waits_and_says_so(request_, reason, says):
    result = decide(policy({"t4": 4}, {"a": {"quota": {"t4": 4}}}), [request_])
    assert result.reasons == {"q": reason}
    assert says in result.message("q")


def test_a_pool_that_is_no_more_is_passed_over():
    rules = policy({"t4": 4}, {"a": {"quota": {"t4": 4}}})
    assert decide(rules, [ask("q", "a", "gone,t4", 1)]).start("q").pool == "t4"
