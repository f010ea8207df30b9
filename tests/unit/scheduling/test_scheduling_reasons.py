"""Why a request waits, in the words that its owner reads."""

from __future__ import annotations

from datetime import datetime, timezone

from scheduling_builder import NOW, ask, decide, holds, policy

NODES = {"h100": {"h1": 8, "h2": 8}}
TEAMS = {"nlp": {"quota": {"h100": 8}}, "vision": {"quota": {"h100": 8}}}


def why(rules, request, running=(), **more):
    result = decide(rules, [request], running, **more)
    return result.reasons[request.id], result.message(request.id)


def test_insufficient_gpus():
    running = [holds("r1", "nlp", "h100", 6, on="h1"), holds("r2", "vision", "h100", 5, on="h2")]
    assert why(policy(NODES, TEAMS), ask("q", "nlp", "h100", 8), running) == (
        "insufficient_gpus",
        "needs 8 h100 on one node; the most free on one node is 3 (5 of 16 in all). "
        "nlp uses 6 of its quota of 8.",
    )


def test_fragmented():
    running = [holds("r1", "nlp", "h100", 5, on="h1"), holds("r2", "vision", "h100", 5, on="h2")]
    assert why(policy(NODES, TEAMS), ask("q", "vision", "h100", 4), running) == (
        "fragmented",
        "needs 4 h100 on one node; the most free on one node is 3 (6 of 16 in all). "
        "vision uses 5 of its quota of 8.",
    )


def test_fragmented_as_whole_nodes():
    running = [holds("r1", "nlp", "h100", 1, on="h1"), holds("r2", "nlp", "h100", 1, on="h2")]
    assert why(policy(NODES, TEAMS), ask("q", "vision", "h100", 12), running) == (
        "fragmented",
        "needs 12 h100 on whole nodes and part of one more; no node has all GPUs free (14 of 16 in all). "
        "vision uses none of its quota of 8.",
    )


def test_fragmented_by_the_split():
    running = [holds("r1", "nlp", "h100", 5, on="h1")]
    assert why(policy(NODES, TEAMS), ask("q", "vision", "h100", 8, per_node=4), running) == (
        "fragmented",
        "needs 8 h100, 4 on each node; 1 node has 4 or more GPUs free (11 of 16 in all). "
        "vision uses none of its quota of 8.",
    )


def test_fragmented_as_cards():
    """Fractions lie on one card each: what is free of several cards is no room for one more."""
    running = [
        *(holds(f"r{number}", "nlp", "a100", 0.7, on="a1") for number in (1, 2)),
        holds("r3", "vision", "a100", 6, on="a1"),
    ]
    rules = policy({"a100": {"a1": 8}}, {"nlp": {"quota": {"a100": 8}}, "vision": {}})
    assert why(rules, ask("q", "nlp", "a100", 0.5), running) == (
        "fragmented",
        "needs 0.5 a100; no card has 0.5 free (0.6 of 8 in all). nlp uses 1.4 of its quota of 8.",
    )
    rules = policy({"a100": 3}, {"nlp": {"quota": {"a100": 3}}})
    halves = [holds(f"r{number}", "nlp", "a100", 0.6) for number in (1, 2)]
    _, message = why(rules, ask("q", "nlp", "a100", 1.5), halves)
    assert "too few cards are free as a whole (1.8 of 3 in all)." in message


def test_the_shape_of_each_amount():
    def needs(gpus, min_gpus=None, per_node=None):
        asked = ask("q", "vision", "h100", gpus, min_gpus=min_gpus, per_node=per_node)
        full = [holds(f"r{node}", "nlp", "h100", 8, on=node) for node in ("h1", "h2")]
        return why(policy(NODES, TEAMS), asked, full)[1].partition(";")[0]

    assert needs(8, min_gpus=4) == "needs 4 to 8 h100 on one node"
    assert needs(12, min_gpus=8) == (
        "needs 8 h100 on one node or 12 on whole nodes and part of one more"
    )
    assert needs(16, min_gpus=1) == "needs 1 h100 or 16 on whole nodes"
    assert needs(16, min_gpus=8, per_node=4) == "needs 8 to 16 h100, 4 on each node"


def test_reserve_held():
    teams = {
        "red": {"quota": {"t4": 4}, "lend_limit": {"t4": 1}},
        "green": {"quota": {"t4": 2}, "lend_limit": {"t4": 0}},
        "blue": {},
    }
    running = [holds("r", "blue", "t4", 3)]
    assert why(policy({"t4": 8}, teams), ask("q", "blue", "t4", 1), running) == (
        "reserve_held",
        "needs 1 t4; t4 has 5 of 8 free; 2 GPUs are held back for green, 3 for red. "
        "blue has no quota of t4 and has borrowed 3.",
    )


def test_computed_parts_are_told_in_hundredths():
    teams = {"red": {"quota": {"t4": 4}, "lend_limit": {"t4": 3}}, "blue": {"quota": {"t4": 2}}}
    rules = policy({"t4": {"n1": 4, "n2": 2}}, teams)
    asks = ask("q", "blue", "t4", 4)
    _, message = why(rules, asks, cordoned={"t4": ["n2"]})
    assert "; 0.67 GPUs are held back for red. " in message


def test_quota_exhausted():
    rules = policy({"t4": 8}, {"a": {"quota": {"t4": 4}}}, borrowing={"tiers": ["milestone"]})
    assert why(rules, ask("q", "a", "t4", 2), [holds("r", "a", "t4", 3)]) == (
        "quota_exhausted",
        "needs 2 t4; a uses 3 of its quota of 4, and tier standard may not borrow (milestone may).",
    )


def test_borrow_limit():
    rules = policy({"t4": 8}, {"a": {"quota": {"t4": 4}, "borrow_limit": {"t4": 2}}})
    assert why(rules, ask("q", "a", "t4", 2), [holds("r", "a", "t4", 5)]) == (
        "borrow_limit",
        "needs 2 t4; a is 1 GPU over its quota of 4, and may borrow 2 in all.",
    )
    assert why(rules, ask("q", "a", "t4", 2), [holds("r", "a", "t4", 6)]) == (
        "borrow_limit",
        "needs 2 t4; a has reached its borrow limit: it uses its quota of 4 and 2 of 2 borrowed.",
    )


def test_ceiling():
    rules = policy({"t4": 8}, {"a": {"quota": {"t4": 8}, "ceilings": {"cpus": 64}}})
    assert why(rules, ask("q", "a", "t4", 2, cpus=8), [holds("r", "a", "t4", 2, cpus=60)]) == (
        "ceiling",
        "needs 2 t4; a has a ceiling of 64 CPUs: its runs use 60, and this run needs 8.",
    )


def test_what_is_reserved_is_told_with_its_start():
    rules = policy({"h100": {"h1": 8, "h2": 8}}, {"a": {"quota": {"h100": 16}}})
    running = [holds("r", "a", "h100", 8, on="h1", since="30m", max_duration="1h")]
    queued = [ask("big", "a", "h100", 16, waited="1h"), ask("q", "a", "h100", 4)]
    assert decide(rules, queued, running).message("q") == (
        "needs 4 h100 on one node; the most free on one node is 8 (8 of 16 in all), but 16 are reserved "
        "for big (a, standard, 16 GPUs), which starts in at most 30 min. a uses 8 of its quota of 16."
    )


def test_preempting():
    rules = policy(
        {"t4": 8}, {"red": {"quota": {"t4": 4}}, "blue": {}}, preemption={"mode": "auto"}
    )
    running = [holds("r1", "red", "t4", 2), holds("r2", "blue", "t4", 6, since="2h")]
    assert why(rules, ask("q", "red", "t4", 2, min_gpus=1), running)[1].startswith(
        "needs 1 to 2 t4; 2 are promised to this run, which starts when r2 (blue, 6 GPUs) is stopped, in at "
        "most 5 min"
    )


def test_approval():
    rules = policy(
        {"t4": 8}, {"red": {"quota": {"t4": 4}}, "blue": {}}, preemption={"mode": "approval"}
    )
    running = [holds("r1", "blue", "t4", 8, since="2h")]
    assert why(rules, ask("q", "red", "t4", 4), running) == (
        "approval",
        "needs 4 t4; a person has to approve that r1 (blue, 8 GPUs) is stopped for this run, by the rule "
        "reclaim.",
    )


def test_maintenance():
    running = [holds("r1", "nlp", "h100", 5, on="h1")]
    cordoned = {"h100": ["h2"]}
    rules = policy(NODES, TEAMS)
    assert why(rules, ask("q", "vision", "h100", 6), running, cordoned=cordoned) == (
        "maintenance",
        "needs 6 h100 on one node; it would start if no node were in maintenance: the most free on one node "
        "is 3 (3 of 8 in all; 8 are in maintenance). "
        "vision uses none of its quota of 8.",
    )


def test_not_maintenance_where_the_rules_are_in_the_way():
    rules = policy(NODES, TEAMS, borrowing={"mode": "off"})
    reason, _ = why(rules, ask("q", "nlp", "h100", 9), cordoned={"h100": ["h2"]})
    assert reason == "quota_exhausted"


def test_reasons_are_judged_after_the_starts():
    """When the pass begins there is room for either; what the other left over is what is told."""
    queued = [ask("first", "nlp", "h100", 8, waited="1h"), ask("then", "nlp", "h100", 8)]
    rules = policy({"h100": {"h1": 8}}, TEAMS, borrowing={"mode": "off"})
    assert decide(rules, queued).reasons == {"then": "quota_exhausted"}


def test_of_several_pools_the_first_in_which_only_space_is_missing_is_told():
    rules = policy(
        {"h100": 8, "a100": 8}, {"a": {"quota": {"a100": 8}}, "b": {}}, borrowing={"mode": "off"}
    )
    result = decide(rules, [ask("q", "a", "h100,a100", 4)], [holds("r", "b", "a100", 6)])
    assert result.reasons == {"q": "insufficient_gpus"}
    assert result.waiting("q").pool == "a100"
    assert result.message("q") == (
        "needs 4 a100; a100 has 2 of 8 free. a uses none of its quota of 8. "
        "It cannot start in h100 (quota_exhausted) either."
    )


def test_what_would_do_with_fewer_is_judged_by_the_least():
    rules = policy({"t4": 8}, {"a": {"quota": {"t4": 4}}}, borrowing={"mode": "off"})
    reason, message = why(rules, ask("q", "a", "t4", 8, min_gpus=4), [holds("r", "b", "t4", 6)])
    assert reason == "insufficient_gpus"
    assert message.startswith("needs 4 to 8 t4; ")


def test_parts_of_a_gpu_are_told_as_such():
    rules = policy({"t4": 1}, {"a": {"quota": {"t4": 1}}})
    _, message = why(rules, ask("q", "a", "t4", 0.5), [holds("r", "b", "t4", 0.75)])
    assert message == "needs 0.5 t4; t4 has 0.25 of 1 free. a uses none of its quota of 1."


def test_only_what_hinders_a_request_is_in_its_way():
    """The gang leaves it a GPU; it is the window that does not, however long it lasts unless told."""
    window = {
        "team": "green",
        "pool": "t4",
        "gpus": 4,
        "from": datetime.fromtimestamp(NOW + 1800, timezone.utc),
        "until": datetime.fromtimestamp(NOW + 3600, timezone.utc),
    }
    rules = policy({"t4": 4}, {"red": {"quota": {"t4": 4}}, "green": {}}, windows=[window])
    gang = ask("gang", "red", "t4", 3, max_duration="15m", waited="1h")
    unbounded, in_its_way = (
        ask("one", "red", "t4", 1),
        ask("two", "red", "t4", 2, max_duration="20m"),
    )
    running = [holds("r1", "red", "t4", 2, since="5m", max_duration="10m")]

    found = decide(rules, [gang, unbounded, in_its_way], running)

    assert found.reasons["one"] == found.reasons["two"] == "lower_priority"
    assert found.waiting("one").blockers == ()
    assert "4 are reserved for a window of green that begins in 30 min" in found.message("one")
    assert found.waiting("two").blockers == ("gang",)
    assert "green" not in found.message("two")
