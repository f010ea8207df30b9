"""Who is told that its time is nearly over, and who is stopped, each once."""

from __future__ import annotations

from dataclasses import replace

from dagster_gpufair.engine.bounds import Bounds
from dagster_gpufair.ledger.leases import LeaseRecord

LEASE = LeaseRecord(
    id=1,
    request_id="run",
    run_id="run",
    team="red",
    project=None,
    tier="standard",
    kind=None,
    source=None,
    pool="t4",
    gpus=1000,
    nodes={},
    started_at=0.0,
    max_duration=7200.0,
    class_=None,
    policy_version=1,
    ungated=False,
    void=False,
    launch_epoch=1,
    warned_at=None,
    released_at=None,
    release_reason=None,
    preempted=0,
    cpus=0.0,
    memory_gib=0.0,
)


def test_notice_comes_five_minutes_before_the_end() -> None:
    bounds = Bounds()

    assert bounds.due([LEASE], 6899) == ([], [])
    assert bounds.due([LEASE], 6900) == ([LEASE], [])
    warned = replace(LEASE, warned_at=6900.0)
    assert bounds.due([warned], 6901) == ([], [])


def test_notice_of_a_short_run_comes_in_its_last_tenth() -> None:
    short = replace(LEASE, max_duration=600.0)

    assert Bounds().due([short], 539) == ([], [])
    assert Bounds().due([short], 540) == ([short], [])


def test_it_is_stopped_at_the_end_and_again_if_it_goes_on() -> None:
    bounds = Bounds()

    assert bounds.due([LEASE], 7200) == ([], [LEASE])
    assert bounds.due([LEASE], 7259) == ([], [])
    assert bounds.due([LEASE], 7260) == ([], [LEASE])


def test_without_a_max_duration_there_is_no_end() -> None:
    assert Bounds().due([replace(LEASE, max_duration=None)], 1e12) == ([], [])
