"""The decision cases: what each expects is decided, and what is no case says why."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import cases
import pytest
import yaml

from dagster_gpufair.policy.problems import PolicyError
from dagster_gpufair.scheduling.cases.case import Case, as_data, case_from, parse_case
from dagster_gpufair.scheduling.model import (
    Account,
    Class,
    Lease,
    Plan,
    Points,
    Preemption,
    Promise,
    Reservation,
    Start,
    State,
    Victim,
    Waiting,
)
from dagster_gpufair.scheduling.plan import plan

HOUR = 3600.0
NOON = 1780315200.0  # 2026-06-01T12:00:00Z
OWN = cases.files(cases.OWN)
SHARED = [file for folder in cases.SHARED for file in cases.files(folder)]
RULES: Mapping[str, Any] = {"pools": {"p": {"nodes": {"n1": 8, "n2": 8}}}, "teams": {"a": {}}}
ASK: Mapping[str, Any] = {
    "id": "q1", "team": "a", "tier": "standard", "pool": "p", "gpus": 4, "submitted": "-1m",
}  # fmt: skip
HELD: Mapping[str, Any] = {
    "id": "r1", "team": "a", "tier": "standard", "pool": "p", "gpus": 4, "started": "-1h",
}  # fmt: skip


def named(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


@pytest.mark.parametrize("path", OWN, ids=named)
def test_own_case(path: Path):
    case = cases.read(path)
    assert case.differences(plan(case.policy, case.state, case.now)) == []


@pytest.mark.skipif(not SHARED, reason="the shared cases are not beside this checkout")
@pytest.mark.parametrize("path", SHARED, ids=named)
def test_shared_case(path: Path):
    if named(path) in cases.OTHERWISE:
        pytest.skip(cases.OTHERWISE[named(path)])
    case = cases.read(path)
    assert case.differences(plan(case.policy, case.state, case.now)) == []


@pytest.mark.parametrize("path", [*OWN, *SHARED], ids=named)
def test_the_order_of_what_is_listed_makes_no_difference(path: Path):
    case, chance = cases.read(path), random.Random(path.stem)

    def mixed(data: Any) -> Any:
        if isinstance(data, dict):
            return {key: mixed(data[key]) for key in chance.sample(list(data), len(data))}
        return data

    data = yaml.safe_load(path.read_text())
    for key in ("running", "queued"):
        data[key] = chance.sample(data.get(key) or [], len(data.get(key) or []))
    other = case_from(mixed(data), str(path))
    one, two = (as_data(plan(each.policy, each.state, each.now)) for each in (case, other))
    assert one == two


def test_the_project_has_cases_of_its_own_for_each_theme():
    assert len(OWN) >= 110
    names = [cases.read(path).name for path in OWN]
    assert len(set(names)) == len(names)


def read(**data: Any) -> Case:
    return case_from({"policy": RULES, **data}, "case.yaml")


def problems(**data: Any) -> dict[str, str]:
    with pytest.raises(PolicyError) as caught:
        read(**data)
    assert caught.value.source == "case.yaml"
    return {problem.path: problem.message for problem in caught.value.problems}


def test_a_lease_with_everything():
    lease = {
        **HELD,
        "project": "x",
        "kind": "training",
        "nodes": {"n1": 3, "gone": 1},
        "max_duration": "2h",
        "source": "job",
        "preempted": 2,
        "cpus": 8,
        "memory_gib": 64.5,
        "checkpointed": "-10m",
        "notice_until": "+5m",
        "notice_for": "q1",
        "term_from": "-30m",
    }
    assert read(running=[lease]).state.leases == [
        Lease(
            id="r1",
            team="a",
            tier="standard",
            pool="p",
            gpus=4000,
            started=NOON - HOUR,
            nodes={"n1": 3000, "gone": 1000},
            project="x",
            max_duration=2 * HOUR,
            source="job",
            preempted=2,
            cpus=8.0,
            memory_gib=64.5,
            checkpointed=NOON - 600,
            notice_until=NOON + 300,
            notice_for="q1",
            term_from=NOON - 1800,
        )
    ]
    alone = read(running=[{**HELD, "node": "n1", "gpus": 0.5}]).state.leases[0]
    assert alone.nodes == {"n1": 500}


def test_a_request_with_everything():
    row = {
        **{key: value for key, value in ASK.items() if key != "pool"},
        "project": "x",
        "kind": "training",
        "pools": ["p", "elsewhere"],
        "min_gpus": 2,
        "gpus_per_node": 2,
        "max_duration": "1h30m",
        "source": "job",
        "preempted": 1,
        "cpus": 2,
        "memory_gib": 4,
        "promised": {"pool": "p", "nodes": {"n1": 2, "n2": 1}},
    }
    (request,) = read(queued=[row]).state.requests
    assert request.pools == ("p", "elsewhere")
    assert (request.sizes, request.gpus_per_node) == ((4000, 2000), 2000)
    assert (request.submitted, request.max_duration) == (NOON - 60, 1.5 * HOUR)
    assert (request.project, request.kind, request.source) == ("x", "training", "job")
    assert (request.preempted, request.cpus, request.memory_gib) == (1, 2.0, 4.0)
    assert request.promised == Promise("p", 3000, {"n1": 2000, "n2": 1000})


def test_a_promise_without_nodes_is_of_all_that_is_asked():
    (request,) = read(queued=[{**ASK, "promised": {"pool": "p"}}]).state.requests
    assert request.promised == Promise("p", 4000)


def test_times_are_moments_or_offsets():
    text = """
    policy: {pools: {p: {gpus: 8}}, teams: {a: {}}}
    now: 2026-06-01T14:00:00+02:00
    queued:
      - {id: q1, team: a, tier: standard, pool: p, gpus: 1, submitted: 2026-06-01T11:00:00Z}
      - {id: q2, team: a, tier: standard, pool: p, gpus: 1, submitted: "2026-06-01 11:00+00:00"}
      - {id: q3, team: a, tier: standard, pool: p, gpus: 1, submitted: -1h30m}
      - {id: q4, team: a, tier: standard, pool: p, gpus: 1, submitted: 0s}
    """
    case = parse_case(text, "case.yaml")
    assert case.now == NOON
    hours = [(request.submitted - NOON) / HOUR for request in case.state.requests]
    assert hours == [-1, -1, -1.5, 0]


def test_offsets_in_grants_and_windows():
    given = {"team": "a", "pool": "p", "gpus": 4, "from": "-1h", "until": "+1h"}
    grant = {**given, "approved_by": "x", "reason": "y"}
    policy = read(policy={**RULES, "grants": [grant], "windows": [given]}).policy
    for each in (policy.grants[0], policy.windows[0]):
        assert each.start is not None and each.until is not None
        assert [each.start.timestamp(), each.until.timestamp()] == [NOON - HOUR, NOON + HOUR]


def test_what_was_borrowed_is_cordoned_or_blocked():
    case = read(
        queued=[ASK],
        used={"a": {"p": 10}, "a/x": {"p": 2.5}},
        cordoned={"p": ["n1"]},
        blocked={"q1": "run_limit"},
    )
    assert case.state == State(
        requests=case.state.requests,
        leases=[],
        used={(Account("a"), "p"): 10.0, (Account("a", "x"), "p"): 2.5},
        cordoned={"p": frozenset({"n1"})},
        blocked={"q1": ("run_limit", "The case says so.")},
    )


def test_names_that_the_policy_does_not_know_may_stand_in_a_case():
    strange = {"team": "z", "tier": "odd", "pool": "gone", "node": "none"}
    assert read(running=[{**HELD, **strange}]).state.leases[0].team == "z"


@pytest.mark.parametrize(
    ("key", "row", "path", "message"),
    [
        ("running", {"strated": 1}, "strated", "unknown key; did you mean 'started'?"),
        ("running", {"started": None}, "started", "is missing"),
        (
            "running",
            {"started": "noon"},
            "started",
            "'noon' is not a time; write an offset from now (-2h, +5m, 0s), or date, time and zone: "
            "2026-06-01T12:00:00Z",
        ),
        ("running", {"gpus": 0}, "gpus", "must be above 0"),
        ("running", {"gpus": "many"}, "gpus", "'many' is not a number of GPUs"),
        ("running", {"team": 7}, "team", "must be text, not 7; quote it"),
        ("running", {"preempted": -1}, "preempted", "must be how many times, 0 or more, not -1"),
        ("running", {"cpus": -1}, "cpus", "must be a number from 0 on, not -1"),
        ("running", {"nodes": "n1"}, "nodes", "must be a group of keys (key: value), not 'n1'"),
        ("running", {"node": "n1", "nodes": {"n1": 4}}, "", "has node and nodes; keep one of them"),
        (
            "running",
            {"nodes": {"n1": 3}},
            "",
            "has 3 on its nodes, and gpus is 4; let them agree",
        ),
        (
            "queued",
            {"gpu_per_node": 1},
            "gpu_per_node",
            "unknown key; did you mean 'gpus_per_node'?",
        ),
        ("queued", {"kind": "trainig"}, "kind", "unknown kind 'trainig'; did you mean 'training'?"),
        (
            "queued",
            {"pool": None},
            "",
            "needs pool: a name, or pools: a list of names in order of liking",
        ),
        (
            "queued",
            {"pool": None, "pools": "p"},
            "pools",
            "must be a list, such as [a, b], not 'p'",
        ),
        (
            "queued",
            {"gpus": 4.5},
            "gpus",
            "is 4.5; ask for whole GPUs, or for a part of one (0.5)",
        ),
        (
            "queued",
            {"min_gpus": 1.5},
            "min_gpus",
            "is 1.5; ask for whole GPUs, or for a part of one (0.5)",
        ),
        (
            "queued",
            {"gpus_per_node": 0.5},
            "gpus_per_node",
            "is 0.5, which is no whole number from 1",
        ),
        ("queued", {"min_gpus": 5}, "", "min_gpus is 5, and gpus is 4; it is at most that"),
        (
            "queued",
            {"promised": {"pool": "p", "nods": {}}},
            "promised.nods",
            "unknown key; did you mean 'nodes'?",
        ),
        (
            "queued",
            {"promised": {"pool": "p", "nodes": {"n1": 8}}},
            "",
            "was promised 8 on its nodes, and asks for 4; let them agree",
        ),
    ],
)
def test_a_row_that_is_wrong(key: str, row: dict[str, Any], path: str, message: str):
    base = HELD if key == "running" else ASK
    found = problems(**{key: [{**base, **row}]})
    (at, said), *others = found.items()
    assert not others
    assert at == f"{key}[0]{'.' if path else ''}{path}"
    assert said == message or said.startswith(f"{message} (known: ")


def test_everything_that_is_wrong_is_said_at_once():
    found = problems(
        nmae="x",
        now="today",
        policy={"pools": {"p": {"gpus": 8}}, "teams": {"a": {"qouta": {"p": 8}}}},
        running=[{**HELD, "gpus": -1}, HELD],
        queued=[{**ASK, "id": "r1"}],
        expect={
            "strat": [],
            "start": ["q9"],
            "wait": {"r1": "lower_prority"},
            "preempt": {"r1": ["x"]},
        },
    )
    assert list(found) == [
        "now",
        "running[0].gpus",
        "expect.wait.r1",
        "expect.strat",
        "nmae",
        "policy.teams.a.qouta",
        "running[1].id",
        "queued[0].id",
        "expect.start[0]",
        "expect.preempt.r1[0]",
    ]
    assert found["running[1].id"] == "'r1' is the id of running[0] already; give it another"
    assert found["expect.start[0]"] == "unknown request 'q9' (known: r1)"
    assert "did you mean 'lower_priority'?" in found["expect.wait.r1"]
    assert found["policy.teams.a.qouta"] == "unknown key; did you mean 'quota'?"
    assert found["expect.strat"] == "unknown key; did you mean 'start'?"


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([{"cards": {"n1": [[0, 0.5]]}}], "has 0.5 on its cards, and gpus is 4"),
        ([{"cards": {"n1": 8}}], "must be a list of cards, each with its number and how much"),
        ([{"gpus": 2, "cards": {"n1": [[0, 1], [0, 1]]}}], "names a card twice"),
        ([{"gpus": 2, "cards": {"n1": [[0, 2]]}}], "uses more than 1 of a card"),
        (
            [{"gpus": 1, "cards": {"n1": [[8, 1]]}}],
            "n1 of p has 8 cards, numbered from 0, and no 8",
        ),
        (
            [{"gpus": 0.6, "cards": {"n1": [[0, 0.6]]}}, {"gpus": 1, "cards": {"n1": [[0, 1]]}}],
            "with it 1.6 of card 0 of n1 of p is in use",
        ),
        (
            [{"gpus": 1, "node": "n2", "cards": {"n1": [[0, 1]]}}],
            "has n1 1 on its cards, and n2 1 on its nodes",
        ),
    ],
)
def test_cards_that_cannot_be(rows: list[dict[str, Any]], said: str):
    held = {key: value for key, value in HELD.items() if key not in ("node", "nodes")}
    running = [{**held, **row, "id": f"r{number}"} for number, row in enumerate(rows)]
    found = problems(running=running)
    assert any(said in message for message in found.values()), found


def test_an_expectation_with_nothing_behind_it_is_not_passed_over():
    message = "start has nothing behind it; write {} or [] for none, or leave it out"
    assert problems(expect={"start": None}) == {"expect": message}
    assert read(expect=None).expect is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty; a case has a policy, running and queued"),
        ("[]", "must be keys and values, from policy: on, not a list"),
        ("name: x", "policy: is missing"),
        ("a: [", "a bracket or a comma is missing"),
        ("policy: {pools: {p: {gpus: 1}}, teams: {a: {}}}\nnow: 12:30:00", "now: YAML reads"),
        (
            "policy: {pools: {p: {gpus: 1}}, teams: {a: {}}}\nnow: 2026-06-01 12:00:00",
            "has no time zone",
        ),
    ],
)
def test_a_text_that_is_no_case(text: str, said: str):
    with pytest.raises(PolicyError) as caught:
        parse_case(text, "case.yaml")
    (problem,) = caught.value.problems
    assert said in str(problem)


POINTS = Points(2000.0, 1.23456, 0.0, 0.0, 0.0, 0.0, 0.0)


def decided(case: Case) -> Plan:
    """r1 leaves for q1, which waits, and q2 starts."""
    q1, q2, q3 = case.state.requests
    victims = [Victim(case.state.leases[0], "reclaim")]
    return Plan(
        starts=[
            Start(
                q2,
                "p",
                q2.gpus,
                {"n2": q2.gpus},
                Class.SHARED,
                1.0,
                POINTS,
                cards={"n2": [(card, 1000) for card in range(4)]},
            )
        ],
        waiting=[
            Waiting([q3], "insufficient_gpus", "needs 4.", "p", Class.BORROWING, 1.0, POINTS),
            Waiting(
                [q1], "preempting", "soon.", "p", Class.GUARANTEED, 1.0, POINTS, blockers=("r1",)
            ),
        ],
        preemptions=[Preemption(q1, Promise("p", 4000, {"n1": 4000}), victims)],
        reservations=[Reservation(q3, "p", 4000, {"n1": 4000}, NOON + 60, Class.BORROWING)],
        withdrawn=["q8"],
        renewed=["r9"],
    )


def expecting(**expect: Any) -> list[str]:
    queued = [{**ASK, "id": id_} for id_ in ("q1", "q2", "q3")]
    case = read(running=[HELD], queued=queued, expect=expect)
    return [str(difference) for difference in case.differences(decided(case))]


def test_what_is_met():
    assert expecting() == []
    assert (
        expecting(
            start=["q2"],
            preempt={"q1": ["r1"]},
            wait={"q1": "preempting"},
            use={"a": {"p": 8}, "b": {"p": 0}},
        )
        == []
    )


@pytest.mark.parametrize(
    ("expect", "said"),
    [
        ({"start": []}, ["start: expected [], found [q2]"]),
        ({"start": ["q1", "q2"]}, ["start: expected [q1, q2], found [q2]"]),
        ({"preempt": {}}, ["preempt.q1: expected nothing, found [r1]"]),
        (
            {"preempt": {"q2": ["r1"]}},
            [
                "preempt.q1: expected nothing, found [r1]",
                "preempt.q2: expected [r1], found nothing",
            ],
        ),
        ({"wait": {"q1": "approval"}}, ["wait.q1: expected approval, found preempting"]),
        ({"wait": {"q2": "approval"}}, ["wait.q2: expected approval, found nothing"]),
        (
            {"wait": {}},
            [
                "wait.q3: expected nothing, found insufficient_gpus",
                "wait.q1: expected nothing, found preempting",
            ],
        ),
        ({"use": {}}, ["use.a.p: expected nothing, found 8"]),
        ({"use": {"a": {}}}, ["use.a.p: expected nothing, found 8"]),
        ({"use": {"a": {"p": 0.5}}}, ["use.a.p: expected 0.5, found 8"]),
    ],
)
def test_what_is_not_met(expect: dict[str, Any], said: list[str]):
    assert expecting(**expect) == said


def test_victims_are_a_set_and_all_of_them_count():
    case = read(
        running=[HELD, {**HELD, "id": "r2"}],
        queued=[{**ASK, "id": id_} for id_ in ("q1", "q2", "q3")],
        expect={"preempt": {"q1": ["r2", "r1"]}},
    )
    one = decided(case)
    assert [each.key for each in case.differences(one)] == ["preempt.q1"]
    victims = [Victim(lease, "reclaim") for lease in case.state.leases]
    both = replace(one, preemptions=[replace(one.preemptions[0], victims=victims)])
    assert case.differences(both) == []


def test_a_plan_as_data():
    case = read(running=[HELD], queued=[{**ASK, "id": id_} for id_ in ("q1", "q2", "q3")])
    data = as_data(decided(case))
    points = {
        "tier": 2000.0, "wait": 1.235, "share": 0.0, "preempted": 0.0, "deadline": 0.0,
        "priority": 0.0, "source": 0.0,
    }  # fmt: skip
    assert data["start"] == [
        {
            "id": "q2",
            "pool": "p",
            "gpus": 4,
            "nodes": {"n2": 4},
            "cards": {"n2": [[0, 1], [1, 1], [2, 1], [3, 1]]},
            "class": "guaranteed",
            "score": 2001.235,
            "points": points,
        }
    ]
    assert data["preempt"] == [
        {
            "for": "q1",
            "victims": ["r1"],
            "kind": "reclaim",
            "rules": {"r1": "reclaim"},
            "pool": "p",
            "gpus": 4,
            "nodes": {"n1": 4},
            "approval": False,
        }
    ]
    assert [(each["id"], each["reason"], each["message"]) for each in data["wait"]] == [
        ("q1", "preempting", "soon."),
        ("q3", "insufficient_gpus", "needs 4."),
    ]
    assert (data["wait"][0]["blockers"], data["wait"][0]["class"]) == (["r1"], "guaranteed")
    assert data["reservations"] == [
        {
            "id": "q3",
            "pool": "p",
            "at": "2026-06-01T12:01:00.000Z",
            "gpus": 4,
            "nodes": {"n1": 4},
            "of_quota": False,
        }
    ]
    assert (data["withdrawn"], data["renewed"]) == (["q8"], ["r9"])
