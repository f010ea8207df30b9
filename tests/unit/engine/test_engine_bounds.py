"""Who is told that its time is nearly over, and who is to be stopped."""

from __future__ import annotations

from dataclasses import replace

from engine_samples import lease

from dagster_gpufair.engine.bounds import due

LEASE = lease(max_duration=7200.0)


def test_it_is_told_five_minutes_before_the_end_and_once() -> None:
    assert due([LEASE], 6899) == ([], [])
    assert due([LEASE], 6900) == ([LEASE], [])
    assert due([replace(LEASE, warned_at=6900.0)], 6901) == ([], [])


def test_a_short_run_is_told_in_its_last_tenth() -> None:
    short = replace(LEASE, max_duration=600.0)

    assert due([short], 539) == ([], [])
    assert due([short], 540) == ([short], [])


def test_it_is_to_be_stopped_at_the_end_which_is_meant_once() -> None:
    assert due([LEASE], 7200) == ([], [LEASE])
    assert due([replace(LEASE, state="stopping")], 7201) == ([], [])


def test_time_counts_from_when_the_work_began() -> None:
    late = replace(LEASE, began_at=1000.0)

    assert due([late], 8199) == ([late], [])
    assert due([late], 8200) == ([], [late])
    assert due([replace(LEASE, state="launching", began_at=None)], 1e12) == ([], [])


def test_without_a_max_duration_there_is_no_end() -> None:
    assert due([replace(LEASE, max_duration=None)], 1e12) == ([], [])
