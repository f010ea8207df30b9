"""What would help a request that waits: each change is one that really starts it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from scheduling_builder import NOW, ask, decide, holds, policy, seconds, state

from dagster_gpufair.scheduling.explaining.remedies import what_would_help
from dagster_gpufair.scheduling.model import Plan, Request
from dagster_gpufair.scheduling.plan import plan

POOLS = {"h100": {"h1": 8, "h2": 8}, "t4": 4}
TEAMS = {
    "nlp": {"quota": {"h100": 16, "t4": 4}, "tiers": ["milestone", "standard", "exploratory"]},
    "vision": {},
}


def changes(rules, request, queued=(), running=(), **more):
    found = what_would_help(rules, state([request, *queued], running, **more), request, NOW)
    return {remedy.change: remedy for remedy in found}


def test_fewer_gpus_are_as_many_as_fit():
    running = [holds("r1", "nlp", "h100", 3, on="h1"), holds("r2", "nlp", "h100", 4, on="h2")]
    found = changes(policy(POOLS, TEAMS), ask("q", "nlp", "h100", 8), running=running)
    assert (found["gpus"].value, found["gpus"].pool) == (5000, "h100")


def test_another_pool_is_named_if_it_has_room():
    running = [holds("r1", "nlp", "h100", 8, on="h1"), holds("r2", "nlp", "h100", 8, on="h2")]
    found = changes(policy(POOLS, TEAMS), ask("q", "nlp", "h100", 4), running=running)
    assert found["pool"].value == "t4"
    assert "gpus" not in found


def test_a_pool_that_could_never_hold_it_is_not_named():
    """t4 has four GPUs in all: it stays out of the advice, whatever else would start the run."""
    running = [holds("r1", "nlp", "h100", 3, on="h1"), holds("r2", "nlp", "h100", 4, on="h2")]
    gang = ask("q", "nlp", "h100", 8)
    assert "pool" not in changes(policy(POOLS, TEAMS), gang, running=running)
    assert "pool" not in changes(policy(POOLS, TEAMS), gang), "it starts in its own pool"


def test_another_pool_is_not_named_where_the_run_starts_in_its_own():
    found = changes(policy(POOLS | {"a100": 8}, TEAMS), ask("q", "nlp", "h100", 8))
    assert "pool" not in found


def test_another_split_is_named_where_the_nodes_are_the_trouble():
    running = [holds("r1", "nlp", "h100", 4, on="h1"), holds("r2", "nlp", "h100", 4, on="h2")]
    found = changes(policy(POOLS, TEAMS), ask("q", "nlp", "h100", 8), running=running)
    assert found["gpus_per_node"].value == 4000


def test_a_shorter_bound_is_named_where_it_would_end_before_a_reservation():
    rules = policy({"h100": {"h1": 8}}, TEAMS | {"nlp": {"quota": {"h100": 8}}})
    running = [holds("r1", "vision", "h100", 4, since="10m", max_duration="90m")]
    gang, small = ask("gang", "nlp", "h100", 8, waited="1h"), ask("q", "vision", "h100", 2)
    found = changes(rules, small, [gang], running)
    assert found["max_duration"].value == seconds("72m"), "80m are left: a tenth is to launch it"


def test_a_tier_that_outranks_work_of_its_own_account_is_named_with_whom_it_stops():
    rules = policy(
        {"t4": 4},
        {"nlp": {"quota": {"t4": 4}, "tiers": ["standard", "exploratory", "milestone"]}},
        preemption={"mode": "auto"},
    )
    running = [holds("r1", "nlp", "t4", 4, tier="standard")]
    always = rules.model_copy(
        update={
            "tiers": rules.tiers
            | {"standard": rules.tiers["standard"].model_copy(update={"preemptible": "always"})}
        }
    )
    found = changes(always, ask("q", "nlp", "t4", 4), running=running)
    assert (found["tier"].value, found["tier"].stops) == ("milestone", ("r1",))


def test_what_only_waits_for_space_is_told_when_it_fits():
    running = [holds("r1", "nlp", "t4", 4, since="30m", max_duration="1h")]
    found = changes(policy(POOLS, TEAMS), ask("q", "nlp", "t4", 4), running=running)
    assert found["wait"].value == NOW + seconds("30m")


def test_nothing_is_named_where_nothing_helps():
    rules = policy({"t4": 4}, {"nlp": {"quota": {"t4": 4}, "tiers": ["standard"]}})
    assert changes(rules, ask("q", "nlp", "t4", 1), running=[holds("r1", "nlp", "t4", 4)]) == {}


def test_each_change_starts_it_when_it_is_made():
    running = [
        holds("r1", "nlp", "h100", 5, on="h1", since="2h", max_duration="3h"),
        holds("r2", "vision", "h100", 6, on="h2", since="1h"),
    ]
    rules, request = policy(POOLS, TEAMS), ask("q", "nlp", "h100", 8)
    assert decide(rules, [request], running).started == []
    for remedy in what_would_help(rules, state([request], running), request, NOW):
        if remedy.change == "wait":
            continue
        changed = changed_by(request, remedy.change, remedy.value)
        assert "q" in started(plan(rules, state([changed], running), NOW)), remedy


def changed_by(request: Request, change: str, value) -> Request:
    if change == "gpus":
        return replace(request, gpus=value, min_gpus=None)
    if change == "pool":
        return replace(request, pools=(*request.pools, value))
    return replace(request, **{change: value})


def started(result: Plan) -> list[str]:
    return [start.request.id for start in result.starts]


def test_a_bound_that_ends_before_a_window_is_named():
    window = {
        "team": "vision",
        "pool": "t4",
        "gpus": 4,
        "from": "2027-01-15T08:10:00Z",
        "until": "2027-01-15T09:00:00Z",
    }
    rules = policy({"t4": 4}, {"nlp": {"quota": {"t4": 4}}, "vision": {}}, windows=[window])
    found = changes(rules, ask("q", "nlp", "t4", 1, max_duration="1h"))
    assert found["max_duration"].value == seconds("9m")


@pytest.mark.parametrize(
    ("left", "offered"),
    [
        ("671s", "10m"),  # 11m11s: 11m would be untrue ten seconds later
        ("15m30s", "13m"),
        ("64m", "57m"),
        ("90m", "81m"),
        ("150s", "1m"),
        ("119s", None),
    ],
)
def test_a_bound_leaves_time_to_read_it_and_launch_again(left: str, offered: str | None):
    """Of the usual bounds too: an hour is none where 64 minutes are left."""
    running = [holds("r1", "vision", "t4", 2, since="0s", max_duration=left)]
    rules = policy({"t4": 4}, {"nlp": {"quota": {"t4": 4}}, "vision": {}})
    gang, small = ask("gang", "nlp", "t4", 4, waited="1h"), ask("q", "vision", "t4", 1)
    found = changes(rules, small, [gang], running)
    bound = found.get("max_duration")
    assert (bound and bound.value) == (offered and seconds(offered))


LIMITED = policy(
    {"t4": 8}, {"nlp": {"quota": {"t4": 8}, "ceilings": {"cpus": 64, "memory_gib": 4}}}
)


@pytest.mark.parametrize(
    ("held", "offered"), [(40, 24), (40.5, 23), (63.25, 0.75), (64, 0), (70, 0), (0.1, 63)]
)
def test_what_a_ceiling_leaves_of_cpus_is_named(held: float, offered: float):
    running = [holds("r1", "nlp", "t4", 1, cpus=held)]
    found = changes(LIMITED, ask("q", "nlp", "t4", 1, cpus=64.0), running=running)
    assert (found["cpus"].value, found["cpus"].gpus) == (offered, 1000)
    assert "memory_gib" not in found


def test_what_a_ceiling_leaves_of_memory_is_named():
    running = [holds("r1", "nlp", "t4", 1, memory_gib=3.7)]
    found = changes(LIMITED, ask("q", "nlp", "t4", 1, memory_gib=2.0), running=running)
    assert found["memory_gib"].value == 0.3


def test_two_ceilings_take_more_than_one_change():
    running = [holds("r1", "nlp", "t4", 1, cpus=40.0, memory_gib=3.0)]
    both = ask("q", "nlp", "t4", 1, cpus=32.0, memory_gib=2.0)
    assert not {"cpus", "memory_gib"} & set(changes(LIMITED, both, running=running))


def test_what_starts_first_has_taken_its_part_of_a_ceiling():
    first = ask("q1", "nlp", "t4", 1, waited="1h", cpus=60.0)
    found = changes(LIMITED, ask("q2", "nlp", "t4", 1, cpus=8.0), [first])
    assert found["cpus"].value == 4
    later = ask("q0", "nlp", "t4", 1, waited="0s", cpus=20.0)
    running = [holds("r1", "nlp", "t4", 1, cpus=34.0)]
    found = changes(LIMITED, ask("q2", "nlp", "t4", 1, cpus=40.0), [later], running)
    assert found["cpus"].value == 10, "launched again, it has not waited, and comes after the other"


def test_only_what_a_run_may_ask_for_is_proposed():
    """Whole GPUs for what asks for whole ones, and with a split what it divides."""
    part = [holds("r1", "vision", "t4", 0.3)]
    found = changes(policy(POOLS, TEAMS), ask("q", "nlp", "t4", 4), running=part)
    assert found["gpus"].value == 3000, "not 3.7"
    busy = [holds("r1", "nlp", "h100", 7, on="h1"), holds("r2", "nlp", "h100", 3, on="h2")]
    split = ask("q", "nlp", "h100", 12, per_node=4)
    found = changes(policy(POOLS, TEAMS), split, running=busy)
    assert found["gpus"].value == 4000, "not 5"


def test_a_change_holds_when_the_run_is_launched_again():
    """Its waiting points are gone then: what another has waited for is no help."""
    rules = policy({"t4": 4}, {"nlp": {"quota": {"t4": 4}}})
    running = [holds("r1", "nlp", "t4", 2)]
    better, other = ask("q", "nlp", "t4", 4, waited="5h"), ask("o", "nlp", "t4", 2, waited="1m")
    blocked = {"o": ("run_limit", "Dagster's own limit")}
    assert "gpus" in changes(rules, better, [other], running, blocked=blocked)
    assert "gpus" not in changes(rules, better, [other], running)
