"""What a policy says of stopping running work: told, and not carried out."""

from __future__ import annotations

import pytest

from dagster_gpufair.engine.as_off import as_off, not_carried_out, would_stop
from dagster_gpufair.policy.loading import parse_policy
from dagster_gpufair.policy.models import Policy
from dagster_gpufair.scheduling.model import Lease, Request, State
from dagster_gpufair.scheduling.plan import plan

NOW = 1_000_000.0
TEAMS = """
pools: {a100: {nodes: {n1: 8}}}
teams: {red: {quota: {a100: 4}}, blue: {quota: {a100: 4}}}
"""
BORROWED = Lease("b", "blue", "standard", "a100", 8000, NOW - 7200, {"n1": 8000})
ASKS = Request("r", "red", "standard", ("a100",), 4000, NOW - 60)


def policy(more: str = "") -> Policy:
    return parse_policy(TEAMS + more)


@pytest.mark.parametrize(
    "more", ["", "preemption: {mode: off, grace: 1m}", "borrowing: {mode: off}"]
)
def test_a_policy_that_stops_nothing_is_carried_out_as_it_is(more: str) -> None:
    written = policy(more)

    assert as_off(written) is written
    assert not_carried_out(written) == []
    assert would_stop(written, State([ASKS], [BORROWED]), NOW) == ()


@pytest.mark.parametrize(
    ("more", "left_out"),
    [
        ("preemption: {mode: auto}", ["preemption.mode: auto"]),
        ("preemption: {mode: approval}", ["preemption.mode: approval"]),
        ("borrowing: {max_duration: 1h}", ["borrowing.max_duration: 1h"]),
        (
            "preemption: {mode: auto}\nborrowing: {max_duration: 90m, tiers: [standard]}",
            ["preemption.mode: auto", "borrowing.max_duration: 1h30m"],
        ),
    ],
)
def test_what_would_stop_running_work_is_left_out_and_nothing_else(
    more: str, left_out: list[str]
) -> None:
    written = policy(more)
    carried_out = as_off(written)

    assert not_carried_out(written) == left_out
    assert not_carried_out(carried_out) == []
    assert as_off(carried_out) is carried_out
    assert carried_out.preemption.mode == "off"
    assert carried_out.borrowing.max_duration is None
    assert carried_out.borrowing.tiers == written.borrowing.tiers
    assert carried_out.teams == written.teams
    assert plan(carried_out, State([ASKS], [BORROWED]), NOW).preemptions == []
    (stop,) = would_stop(written, State([ASKS], [BORROWED]), NOW)
    assert (stop.request, [victim.lease.id for victim in stop.victims]) == (ASKS, ["b"])
