"""The rules of a policy on real runs: what is kept for whom, for how long, and what gives way to it."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

import pytest
from gate_stage import Stage

from dagster_gpufair.ledger import events, nodes, pauses, usage
from dagster_gpufair.ledger.events import Event
from dagster_gpufair.scheduling.model import Account, Class

OpenStage = Callable[..., Stage]
HOUR = 3600.0
NOW = time.time()
LENDS = """
pools: {a100: {nodes: {n1: 8}}, t4: {gpus: 4}}
teams: {red: {quota: {a100: 8, t4: 2}}, blue: {quota: {t4: 2}}}
"""


def moment(at: float) -> str:
    """As a policy file has it, and to the second."""
    return datetime.fromtimestamp(at, timezone.utc).isoformat(timespec="seconds")


def recorded(stage: Stage, run_id: str, kind: str) -> list[Event]:
    """What the ledger says of one kind that happened to a run."""
    with stage.ledger.reading() as session:
        return [event for event in events.of_run(session, run_id) if event.kind == kind]


def test_gpus_are_kept_for_a_gang_and_short_runs_slip_in(open_stage: OpenStage) -> None:
    stage = open_stage(LENDS)
    lent = stage.submit(team="blue", pool="a100", gpus=6, max_duration="2h")
    stage.pass_(at=NOW)
    gang = stage.submit(team="red", pool="a100", gpus=8)
    stage.pass_(at=NOW + 1)
    short = stage.submit(team="blue", pool="a100", gpus=1, max_duration="1h")
    endless = stage.submit(team="blue", pool="a100", gpus=1)
    for seconds in (2, 3):
        stage.pass_(at=NOW + seconds)

    assert stage.launched == [lent, short]
    assert stage.reason(gang) == "insufficient_gpus"
    assert stage.reason(endless) == "lower_priority"
    assert f"reserved for {gang[:8]} (red, standard, 8 GPUs)" in stage.tags(endless)["why"]
    stage.restart_daemon()
    stage.pass_(at=NOW + 4)
    (kept,) = recorded(stage, gang, "reserved")
    assert (kept.team, kept.pool) == ("red", "a100")
    # What has not begun by then has all of its two hours before it.
    assert 0 <= kept.data["at"] - (NOW + 2 * HOUR) <= 3
    assert {**kept.data, "at": None} == {
        "request": gang,
        "gpus": 8000,
        "nodes": {"n1": 8000},
        "at": None,
        "class": "guaranteed",
        "of_quota": False,
    }

    stage.succeed(short)
    stage.succeed(lent)
    stage.pass_(at=NOW + HOUR)
    assert stage.launched == [lent, short, gang]
    assert stage.said("reservations") == []
    stage.assert_nothing_lost()


def test_a_window_is_left_free_and_is_its_teams_while_it_lasts(open_stage: OpenStage) -> None:
    window = (
        f"windows: [{{team: red, pool: t4, gpus: 2, from: '{moment(NOW + HOUR)}', "
        f"until: '{moment(NOW + 2 * HOUR)}'}}]"
    )
    stage = open_stage(LENDS + window)
    endless = stage.submit(team="blue", pool="t4", gpus=4)
    stage.pass_(at=NOW)
    assert stage.reason(endless) == "lower_priority"
    assert "reserved for a window of red that begins in " in stage.events(endless)
    short = stage.submit(team="blue", pool="t4", gpus=4, max_duration="30m")
    stage.pass_(at=NOW + 1)
    assert stage.launched == [short]

    stage.succeed(short)
    stage.pass_(at=NOW + HOUR + 60)
    assert stage.reason(endless) == "reserve_held", "red lends no GPU of its window"
    its = stage.submit(team="red", pool="t4", gpus=4)
    stage.pass_(at=NOW + HOUR + 61)
    assert stage.launched == [short, its]
    assert stage.tags(its)["reason"] == "guaranteed · 4 × t4"

    stage.succeed(its)
    stage.pass_(at=NOW + 2 * HOUR + 60)
    assert stage.launched == [short, its, endless]
    stage.assert_nothing_lost()


def test_a_grant_begins_and_ends_by_itself(open_stage: OpenStage) -> None:
    grant = (
        f"grants: [{{team: blue, pool: t4, gpus: 2, from: '{moment(NOW + HOUR)}', "
        f"until: '{moment(NOW + 2 * HOUR)}', approved_by: ana, reason: deadline}}]"
    )
    stage = open_stage(f"{LENDS}borrowing: {{mode: off}}\n{grant}")
    first, second, third = (stage.submit(team="blue", pool="t4", gpus=2) for _ in range(3))
    stage.pass_(at=NOW)
    assert stage.launched == [first]
    assert stage.reason(second) == "quota_exhausted"

    stage.pass_(at=NOW + HOUR + 60)
    assert stage.launched == [first, second]
    assert "within the quota of blue" in stage.events(second)

    stage.succeed(first)
    stage.pass_(at=NOW + 2 * HOUR + 60)
    assert stage.launched == [first, second], "what runs goes on, and nothing more starts"
    assert stage.reason(third) == "quota_exhausted"
    stage.succeed(second)
    stage.pass_(at=NOW + 2 * HOUR + 61)
    assert stage.launched == [first, second, third]
    stage.assert_nothing_lost()


def test_a_project_has_its_part_of_the_teams_quota(open_stage: OpenStage) -> None:
    stage = open_stage("""
        pools: {a100: {nodes: {n1: 8}}}
        teams:
          red:
            quota: {a100: 6}
            projects: {pretrain: {quota: {a100: 4}, lend_limit: {a100: 1}}}
          blue: {quota: {a100: 2}, lend_limit: {a100: 0}}
    """)
    rest, more, too_much = (stage.submit(team="red", pool="a100", gpus=n) for n in (2, 1, 1))
    stage.pass_(at=NOW)
    stage.restart_daemon()
    its = stage.submit(team="red", project="pretrain", pool="a100", gpus=3)
    stage.pass_(at=NOW + 1)

    assert stage.launched == [rest, more, its]
    classes = [stage.leases(run_id)[0].class_ for run_id in (rest, more, its)]
    assert classes == [Class.GUARANTEED, Class.SHARED, Class.GUARANTEED]
    assert "within the quota of red as a whole" in stage.events(more)
    assert "within the quota of red/pretrain" in stage.events(its)
    assert stage.reason(too_much) == "reserve_held"
    stage.assert_nothing_lost()


def test_what_a_project_borrows_counts_for_it(open_stage: OpenStage) -> None:
    stage = open_stage("""
        pools: {a100: {nodes: {n1: 8}}}
        teams:
          red: {quota: {a100: 2}, projects: {pretrain: {quota: {a100: 1}}}}
          blue: {quota: {a100: 6}}
    """)
    stage.submit(team="red", pool="a100", gpus=1)
    for gpus in (1, 4):
        stage.submit(team="red", project="pretrain", pool="a100", gpus=gpus)
    for hours in (0.0, 1.0):
        stage.pass_(at=NOW + hours * HOUR)

    with stage.ledger.reading() as session:
        used = usage.used(session, NOW + HOUR, 7 * 24 * HOUR)
    its = Account("red", "pretrain"), "a100"
    assert used.keys() == {its}
    assert used[its] == pytest.approx(4, rel=0.01)


def test_a_fast_lane_is_for_small_and_short_runs(open_stage: OpenStage) -> None:
    stage = open_stage(LENDS + "fast_lane: {t4: {gpus: 1, max_gpus: 1, max_duration: 30m}}")
    usual = stage.submit(team="blue", pool="t4", gpus=3, max_duration="2h")
    stage.pass_(at=NOW)
    endless = stage.submit(team="red", pool="t4", gpus=1)
    stage.pass_(at=NOW + 1)
    small = stage.submit(team="red", pool="t4", gpus=1, max_duration="20m")
    assert stage.reason(endless) == "lower_priority"
    assert "in the fast lane" in stage.tags(endless)["why"]
    stage.pass_(at=NOW + 2)

    assert stage.launched == [usual, small]
    stage.assert_nothing_lost()


def test_what_a_team_declares_beside_gpus_stays_below_its_ceiling(open_stage: OpenStage) -> None:
    stage = open_stage("""
        pools: {t4: {gpus: 4}}
        teams: {red: {quota: {t4: 4}, ceilings: {cpus: 32, memory_gib: 256}}}
    """)
    first = stage.submit(team="red", pool="t4", gpus=1, cpus=24, memory_gib=64)
    second = stage.submit(team="red", pool="t4", gpus=1, cpus=12, memory_gib=64)
    frugal = stage.submit(team="red", pool="t4", gpus=1, cpus=8, memory_gib=192)
    stage.pass_(at=NOW)
    stage.restart_daemon()
    stage.pass_(at=NOW + 1)

    assert stage.launched == [first, frugal]
    assert stage.reason(second) == "ceiling"
    assert (
        "red has a ceiling of 32 CPUs: its runs use 32, and this run needs 12"
        in stage.tags(second)["why"]
    )
    stage.succeed(first)
    stage.pass_(at=NOW + 2)
    assert stage.launched == [first, frugal, second]
    stage.assert_nothing_lost()


def test_fewer_gpus_or_another_pool(open_stage: OpenStage) -> None:
    stage = open_stage(LENDS)
    holds = stage.submit(team="red", pool="a100", gpus=4)
    stage.pass_(at=NOW)
    fewer = stage.submit(team="red", pool="a100", gpus="4-8")
    stage.pass_(at=NOW + 1)
    elsewhere = stage.submit(team="red", pool="a100,t4", gpus=2)
    stage.pass_(at=NOW + 2)

    assert stage.launched == [holds, fewer, elsewhere]
    assert "Granted 4 × a100 on n1 (of 8 asked)" in stage.events(fewer)
    assert stage.tags(elsewhere)["reason"] == "guaranteed · 2 × t4"
    stage.assert_nothing_lost()


def test_whoever_has_borrowed_for_its_time_is_told_and_stopped_for_whoever_waits(
    open_stage: OpenStage,
) -> None:
    """Also where nothing else is ever stopped for others."""
    stage = open_stage(f"{LENDS}borrowing: {{max_duration: 1h}}")
    lent = stage.submit(team="blue", pool="a100", gpus=8)
    stage.pass_(at=NOW)
    stage.start(lent)
    stage.pass_(at=NOW + 1)
    waits = stage.submit(team="red", pool="a100", gpus=4)
    stage.pass_(at=NOW + 0.9 * HOUR)
    assert stage.reason(waits) == "insufficient_gpus"
    stage.pass_(at=NOW + 1.1 * HOUR)
    assert stage.reason(waits) == "preempting"
    assert "borrowing time is over" in stage.tags(lent)["why"]
    stage.pass_(at=NOW + 1.2 * HOUR)
    stage.launcher.await_terminated(lent)


def test_what_is_paused_is_not_done_from_the_next_pass_on(open_stage: OpenStage) -> None:
    """Notices are taken back at once, and nothing more is lent; afterwards both go on."""
    stage = open_stage(f"{LENDS}preemption: {{mode: auto, min_runtime: 0s}}")
    lent = stage.submit(team="blue", pool="a100", gpus=8)
    stage.pass_(at=NOW)
    stage.start(lent)
    stage.pass_(at=NOW + 1)
    waits = stage.submit(team="red", pool="a100", gpus=4)
    stage.pass_(at=NOW + 2)
    assert stage.tags(lent)["reason"].startswith("stopped at ")

    with stage.ledger.writing() as session:
        pauses.pause(session, "preemption", "ann", "maintenance", NOW + 3)
        pauses.pause(session, "borrowing", "ann", "maintenance", NOW + 3)
    borrows = stage.submit(team="blue", pool="t4", gpus=3)
    stage.pass_(at=NOW + 4)
    assert stage.tags(lent)["reason"].startswith("goes on")
    assert stage.reason(waits) == "insufficient_gpus"
    assert stage.reason(borrows) == "paused"
    assert "borrowing is paused" in stage.tags(borrows)["why"]
    stage.pass_(at=NOW + HOUR)
    assert stage.launcher.terminated == []

    with stage.ledger.writing() as session:
        pauses.resume(session, "preemption", "ann", "done", NOW + HOUR + 1)
        pauses.resume(session, "borrowing", "ann", "done", NOW + HOUR + 1)
    stage.pass_(at=NOW + HOUR + 2)
    assert stage.tags(lent)["reason"].startswith("stopped at ")
    assert stage.holders() == {lent, borrows}


def test_a_node_out_of_service_takes_nothing_until_it_is_put_back(
    open_stage_on_each: OpenStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = open_stage_on_each(LENDS)
    runs = stage.submit(team="red", pool="a100", gpus=2)
    stage.pass_(at=NOW)
    waits = stage.submit(team="red", pool="a100", gpus=2)
    grant = stage.daemon._gate.engine.carry_out

    def cordon(*args: Any) -> Any:
        """In mid-pass: the decision did not know of it."""
        monkeypatch.undo()
        with stage.ledger.writing() as session:
            assert nodes.cordon(session, "a100", "n1", "ana", "fan is broken", NOW)
        return grant(*args)

    monkeypatch.setattr(stage.daemon._gate.engine, "carry_out", cordon)
    for seconds in (1, 2):
        stage.pass_(at=NOW + seconds)

    assert stage.launched == [runs], "what runs there goes on"
    assert stage.reason(waits) == "maintenance"
    assert "would start if no node were in maintenance" in stage.tags(waits)["why"]
    with stage.ledger.writing() as session:
        assert nodes.uncordon(session, "a100", "n1", "ana", NOW + 3)
    stage.pass_(at=NOW + 4)
    assert stage.launched == [runs, waits]
    stage.assert_nothing_lost()


def test_what_a_team_has_borrowed_of_late_counts_for_a_daemon_that_takes_over(
    open_stage: OpenStage,
) -> None:
    stage = open_stage("""
        pools: {a100: {gpus: 4}}
        teams: {red: {}, blue: {}}
    """)
    borrows = stage.submit(team="red", pool="a100", gpus=4)
    stage.pass_(at=NOW)
    stage.pass_(at=NOW + 36_000)
    again = stage.submit(team="red", pool="a100", gpus=4)
    first_time = stage.submit(team="blue", pool="a100", gpus=4)

    stage.succeed(borrows)
    stage.restart_daemon()
    stage.pass_(at=NOW + 36_001)

    assert stage.launched == [borrows, first_time]
    assert stage.reason(again) == "insufficient_gpus"
