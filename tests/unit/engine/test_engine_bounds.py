"""Who is told that its time is nearly over, and who is to be stopped."""

from __future__ import annotations

from dataclasses import replace

from lease_samples import lease

from dagster_gpufair.engine.bounds import due, is_noted
from dagster_gpufair.ledger.leases import BOUND, PREEMPTION

LEASE = lease(max_duration=7200.0)


def test_it_is_told_five_minutes_before_the_end_and_once() -> None:
    assert due([LEASE], (), 6899) == ([], [])
    assert due([LEASE], (), 6900) == ([LEASE], [])
    assert due([replace(LEASE, warned_at=6900.0)], (), 6901) == ([], [])


def test_a_short_run_is_told_in_its_last_tenth() -> None:
    short = replace(LEASE, max_duration=600.0)

    assert due([short], (), 539) == ([], [])
    assert due([short], (), 540) == ([short], [])


def test_it_is_to_be_stopped_at_the_end_which_is_meant_once() -> None:
    assert due([LEASE], (), 7200) == ([], [(LEASE, BOUND)])
    assert due([replace(LEASE, state="stopping")], (), 7201) == ([], [])


def test_time_counts_from_when_the_work_began() -> None:
    late = replace(LEASE, began_at=1000.0)

    assert due([late], (), 8199) == ([late], [])
    assert due([late], (), 8200) == ([], [(late, BOUND)])
    assert due([replace(LEASE, state="launching", began_at=None)], (), 1e12) == ([], [])


def test_without_a_max_duration_there_is_no_end() -> None:
    assert due([replace(LEASE, max_duration=None)], (), 1e12) == ([], [])


NOTICED = lease(state="notice", notice_until=500.0, notice_for="asks", notice_rule="reclaim")


def test_who_is_under_notice_is_stopped_at_its_deadline_and_not_before() -> None:
    assert due([NOTICED], (), 499) == ([], [])
    assert due([NOTICED], (), 500) == ([], [(NOTICED, PREEMPTION)])
    assert due([replace(NOTICED, state="stopping")], (), 501) == ([], [])
    assert due([replace(NOTICED, state="running")], (), 501) == ([], []), "it was spared"


def test_who_says_that_all_is_saved_is_stopped_at_once_if_it_is_under_notice() -> None:
    said = {NOTICED.request_id}
    assert due([NOTICED], said, 100) == ([], [(NOTICED, PREEMPTION)])
    assert due([replace(NOTICED, state="running")], said, 100) == ([], [])


def test_who_is_past_its_own_bound_ends_for_that_and_does_not_go_on() -> None:
    both = replace(NOTICED, max_duration=400.0)
    assert due([both], (), 500) == ([], [(both, BOUND)])


def test_a_run_that_saves_all_the_time_is_written_down_once_a_minute_until_it_is_under_notice() -> (
    None
):
    saved = replace(LEASE, checkpointed_at=1000.0)
    assert is_noted(1001.0, LEASE), "the first"
    assert not is_noted(1059.0, saved)
    assert is_noted(1060.0, saved)

    under_notice = replace(NOTICED, checkpointed_at=1000.0)
    assert is_noted(1001.0, under_notice)
    assert not is_noted(1000.0, under_notice)
    assert not is_noted(999.0, under_notice), "what is saved is never taken back"
