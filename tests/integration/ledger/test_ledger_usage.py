"""What accounts have borrowed lately, fading with a half-life."""

from __future__ import annotations

import math

import pytest

from dagster_gpufair.ledger import usage
from dagster_gpufair.ledger.connect import Ledger
from dagster_gpufair.scheduling.model import Account

DAY = 86400.0
WEEK = 7 * DAY
NLP, PRETRAIN = Account("nlp"), Account("nlp", "pretrain")


def test_eight_gpus_for_an_hour_are_eight_gpu_hours_at_first(ledger: Ledger) -> None:
    with ledger.writing() as session:
        assert usage.used(session, 0.0, WEEK) == {}
        usage.accrue(session, {(NLP, "h100"): 8000}, 0.0, 3600.0, WEEK)
        now = usage.used(session, 3600.0, WEEK)[NLP, "h100"]
        later = usage.used(session, 3600.0 + WEEK, WEEK)[NLP, "h100"]
    # An hour is little beside a week.
    assert now == pytest.approx(8.0, rel=0.01)
    assert now < 8.0
    assert later == pytest.approx(now / 2)


def test_the_integral_is_exact(ledger: Ledger) -> None:
    """Summed in slices of a second it is the same, and it tends to what the rate can hold."""
    half_life, until = 600.0, 1800.0
    slices = sum(
        2 * 0.5 ** ((until - (second + 0.5)) / half_life) / 3600 for second in range(int(until))
    )
    with ledger.writing() as session:
        usage.accrue(session, {(NLP, "h100"): 2000}, 0.0, until, half_life)
        assert usage.used(session, until, half_life)[NLP, "h100"] == pytest.approx(slices, rel=1e-6)
        usage.accrue(session, {(NLP, "t4"): 2000}, 0.0, 1000 * half_life, half_life)
        held = usage.used(session, 1000 * half_life, half_life)[NLP, "t4"]
    assert held == pytest.approx(2 * half_life / math.log(2) / 3600)


def test_it_makes_no_difference_how_time_is_cut(ledger: Ledger) -> None:
    at_once, in_pieces = Account("at-once"), Account("in-pieces")
    with ledger.writing() as session:
        usage.accrue(session, {(at_once, "h100"): 500}, 0.0, 10 * DAY, WEEK)
        for day in range(10):
            usage.accrue(session, {(in_pieces, "h100"): 500}, day * DAY, (day + 1) * DAY, WEEK)
        used = usage.used(session, 12 * DAY, WEEK)
    assert used[in_pieces, "h100"] == pytest.approx(used[at_once, "h100"])


def test_accounts_and_pools_are_apart(ledger: Ledger) -> None:
    borrowed = {(NLP, "h100"): 1000, (PRETRAIN, "h100"): 2000, (NLP, "t4"): 3000}
    with ledger.writing() as session:
        usage.accrue(session, borrowed, 0.0, 3600.0, WEEK)
        usage.accrue(session, {(NLP, "t4"): 0}, 3600.0, 7200.0, WEEK)
        used = usage.used(session, 3600.0, WEEK)
    assert used.keys() == borrowed.keys()
    assert used[PRETRAIN, "h100"] == pytest.approx(2 * used[NLP, "h100"])


def test_a_clock_that_went_back_adds_nothing(ledger: Ledger) -> None:
    with ledger.writing() as session:
        usage.accrue(session, {(NLP, "h100"): 8000}, 0.0, 3600.0, WEEK)
        before = usage.used(session, 3600.0, WEEK)
        usage.accrue(session, {(NLP, "h100"): 8000}, 3600.0, 3000.0, WEEK)
        assert usage.used(session, 3600.0, WEEK) == before
        assert usage.used(session, 0.0, WEEK) == before


def test_without_a_half_life_nothing_is_remembered(ledger: Ledger) -> None:
    with ledger.writing() as session:
        usage.accrue(session, {(NLP, "h100"): 8000}, 0.0, 3600.0, 0.0)
        assert usage.used(session, 3601.0, 0.0)[NLP, "h100"] == 0.0
