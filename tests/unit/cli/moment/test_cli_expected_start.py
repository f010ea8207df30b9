"""By when and about when: a limit is told as a limit, and what is usual only where it is sooner."""

from __future__ import annotations

import time

import pytest

from dagster_gpufair.cli.moment.expected_start import Expected, expected_starts
from dagster_gpufair.policy.loading import parse_policy
from dagster_gpufair.scheduling.model import Lease, Request, State

NOON = time.mktime((2026, 6, 1, 12, 0, 0, 0, 0, -1))
HOUR = 3600.0
ZONE = time.strftime("%Z", time.localtime(NOON))


@pytest.mark.parametrize(
    ("latest", "usual", "words"),
    [
        (None, None, "?"),
        (NOON + HOUR, None, f"by 13:00 {ZONE}"),
        (None, NOON + HOUR, f"about 13:00 {ZONE}"),
        (NOON + 2 * HOUR, NOON + HOUR, f"about 13:00 {ZONE}"),
        (NOON + HOUR, NOON + HOUR, f"by 13:00 {ZONE}"),
        (NOON + HOUR, NOON + 2 * HOUR, f"by 13:00 {ZONE}"),
        (NOON, None, "now"),
    ],
)
def test_in_a_table(latest: float | None, usual: float | None, words: str) -> None:
    assert Expected.of(latest, usual).words(NOON) == words


def test_in_a_sentence() -> None:
    assert Expected.of(NOON + 2 * HOUR, NOON + HOUR).sentence(NOON) == (
        f"It starts about 13:00 {ZONE}, if running jobs take as long as they usually do and no "
        f"higher-priority run arrives; by 14:00 {ZONE} at the latest, if running jobs use their full "
        "max_duration."
    )
    assert Expected.of(NOON + HOUR, None).sentence(NOON) == (
        f"It starts by 13:00 {ZONE} at the latest, if running jobs use their full max_duration and no "
        "higher-priority run arrives."
    )
    assert Expected().sentence(NOON) == "When it starts is not known."


def test_starts_by_bounds_and_by_what_is_usual() -> None:
    policy = parse_policy("{pools: {t4: {gpus: 2}}, teams: {red: {quota: {t4: 2}}}}")
    bounded = Lease("a", "red", "standard", "t4", 1000, NOON - HOUR, max_duration=3 * HOUR)
    unbounded = Lease("b", "red", "standard", "t4", 1000, NOON - HOUR)
    requests = [
        Request(id_, "red", "standard", ("t4",), 1000, NOON - at)
        for at, id_ in enumerate(("third", "second", "first"))
    ]
    state = State(requests=requests, leases=[bounded, unbounded])
    assert expected_starts(policy, state, NOON, {}) == {"first": Expected(NOON + 2 * HOUR)}
    assert expected_starts(policy, state, NOON, {"b": NOON + HOUR}) == {
        "first": Expected(NOON + 2 * HOUR, NOON + HOUR),
        "second": Expected(None, NOON + 2 * HOUR),
    }
