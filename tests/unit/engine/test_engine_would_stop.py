"""What is said of runs that would be stopped: asked when it may have changed, in few words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dagster_gpufair.engine import would_stop as module
from dagster_gpufair.engine.as_off import as_off
from dagster_gpufair.engine.would_stop import FEWEST, LATE, OF_A_KIND, SOON, Remark, WouldStop
from dagster_gpufair.policy.loading import parse_policy
from dagster_gpufair.policy.models import Policy
from dagster_gpufair.scheduling.model import Lease, Request, State
from dagster_gpufair.scheduling.plan import plan

NOW = 1_000_000.0
TEAMS = """
pools: {a100: {nodes: {n1: 8, n2: 8}}}
teams: {red: {quota: {a100: 8}}, blue: {quota: {a100: 8}}}
"""
AUTO = parse_policy(TEAMS + "preemption: {mode: auto}")
APPROVAL = parse_policy(TEAMS + "preemption: {mode: approval}")
TERM = parse_policy(TEAMS + "borrowing: {max_duration: 1h}")
OWN = Lease("blue-1111", "blue", "standard", "a100", 8000, NOW - 9000, {"n1": 8000})
LENT = Lease("blue-2222", "blue", "standard", "a100", 4000, NOW - 8000, {"n2": 4000})
LENT_TOO = Lease("blue-3333", "blue", "standard", "a100", 4000, NOW - 7000, {"n2": 4000})
RUNS = State(leases=[OWN, LENT, LENT_TOO])


def asks(id_: str = "red", gpus: int = 4, **more: object) -> Request:
    return Request(id_, "red", "standard", ("a100",), gpus * 1000, NOW - 60, **more)  # type: ignore[arg-type]


def look(
    would_stop: WouldStop, policy: Policy, state: State, at: float = 0.0, seen: object = None
) -> dict[str, Remark]:
    """As a pass does at a moment after `NOW`."""
    now = NOW + at
    would_stop.look(policy, state, plan(as_off(policy), state, now), seen, now)
    return would_stop.remarks(policy, state)


@pytest.mark.parametrize(
    ("policy", "says", "short"),
    [
        (
            AUTO,
            "Preemption is on in the policy (auto) and not carried out in this version: it would stop "
            "blue-3333 (blue, 4 GPUs) for this run (reclaim).",
            "Not carried out in this version: preemption (auto) would stop blue-3333 (blue, 4 GPUs).",
        ),
        (
            APPROVAL,
            "Preemption is on in the policy (approval) and not carried out in this version: it would, "
            "once a person had agreed, stop blue-3333 (blue, 4 GPUs) for this run (reclaim).",
            "Not carried out in this version: preemption (approval) would stop blue-3333 (blue, 4 GPUs).",
        ),
        (
            TERM,
            "Borrowing for 1h at most is in the policy and not carried out in this version: it would "
            "stop blue-3333 (blue, 4 GPUs) for this run (term).",
            "Not carried out in this version: borrowing for 1h at most would stop blue-3333 (blue, 4 GPUs).",
        ),
    ],
)
def test_it_says_who_would_be_stopped_and_by_which_rule(
    policy: Policy, says: str, short: str
) -> None:
    state = replace(RUNS, requests=[asks()])

    assert look(WouldStop(), policy, state) == {"red": Remark(says, short)}


def test_several_are_named_and_the_tag_is_short() -> None:
    state = replace(RUNS, requests=[asks(gpus=8)])

    remark = look(WouldStop(), AUTO, state)["red"]
    assert "blue-2222 (blue, 4 GPUs) and blue-3333 (blue, 4 GPUs)" in remark.sentence
    assert remark.short.endswith(" (blue, 4 GPUs) and 1 more.")


def test_nothing_is_said_where_nothing_would_be_stopped() -> None:
    assert look(WouldStop(), as_off(AUTO), replace(RUNS, requests=[asks()])) == {}
    assert look(WouldStop(), AUTO, RUNS) == {}
    assert look(WouldStop(), AUTO, State(leases=[OWN], requests=[asks(gpus=16)])) == {}


def test_a_change_is_looked_at_soon_and_time_itself_later() -> None:
    would_stop, empty = (
        WouldStop(),
        State(leases=[OWN, LENT, LENT_TOO], requests=[asks("far", gpus=16)]),
    )
    both = replace(empty, requests=[asks("far", gpus=16), asks()])

    assert look(would_stop, AUTO, empty, 0, "one") == {}
    assert look(would_stop, AUTO, both, SOON - 1, "two") == {}
    assert look(would_stop, AUTO, both, SOON + 1, "two").keys() == {"red"}
    young = replace(both, leases=[OWN, replace(LENT, started=NOW), replace(LENT_TOO, started=NOW)])
    assert look(would_stop, AUTO, young, LATE, "two").keys() == {"red"}, "it was not asked again"
    assert look(would_stop, AUTO, young, LATE + SOON + 1, "two") == {}
    assert look(would_stop, AUTO, both, -3600, "two").keys() == {"red"}, "the clock was set back"


def test_what_has_ended_since_would_not_be_stopped() -> None:
    would_stop, state = WouldStop(), replace(RUNS, requests=[asks()])

    assert look(would_stop, AUTO, state, 0, "one").keys() == {"red"}
    assert look(would_stop, AUTO, replace(state, leases=[OWN, LENT]), 1, "two") == {}


def test_of_a_long_line_the_first_are_asked_about_and_more_as_time_allows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []

    def would_stop(policy: Policy, state: State, now: float) -> list[object]:
        asked.append(len(state.requests))
        return []

    monkeypatch.setattr(module, "would_stop", would_stop)
    would_stop = WouldStop()
    kinds = [asks(f"kind-{number}", gpus=16, cpus=1.0 + number) for number in range(1000)]
    alike = [asks(f"alike-{number:03}", gpus=16) for number in range(100)]
    state = replace(RUNS, requests=[*kinds, *alike])
    for number in range(5):
        look(would_stop, AUTO, state, number * 1000.0, number)

    assert FEWEST <= asked[0] <= FEWEST + OF_A_KIND
    assert asked == sorted(asked)
    assert asked[-1] == len(kinds) + OF_A_KIND
