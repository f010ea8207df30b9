"""What a person reads in ``gpufair explain``, in each state that a run can be in."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest
from cli_samples import POLICY, WITH_A_PROJECT, Filling, asked, minute, minutes, run_id, time_of_day
from click.testing import Result
from dagster import DagsterInstance, DagsterRunStatus, job, op

from dagster_gpufair.cli.output.times import clock
from dagster_gpufair.ledger import leases, lifecycle, requests, usage
from dagster_gpufair.scheduling.model import Account, Class

Gpufair = Callable[..., Result]


@op
def nothing() -> None:
    pass


@job
def quiet() -> None:
    nothing()


def test_it_waits_behind_a_better_class(queue: Filling, gpufair: Gpufair) -> None:
    queue.run(asked(1, 8, ago=90, team="vision", max_duration=7200.0), ago=90)
    queue.run(asked(2, 8, ago=80, team="speech"), ago=80)
    queue.submit(asked(3, 8, ago=41, tier="milestone", project="pretrain"))
    queue.submit(asked(4, 4, ago=72, team="vision"))
    result = gpufair("explain", "00000004")
    lines = result.stdout.splitlines()
    assert lines[0] == f"{run_id(4)} · vision standard · train"
    assert lines[1].startswith(f"submitted {minute(72)}:")
    assert lines[2] == (
        f"It waits for 4 h100 since {time_of_day(72)} (1 h 12 min): insufficient_gpus, place 2 in h100."
    )
    assert lines[3].startswith("It needs 4 ")
    assert lines[4] == (
        "When it starts is not known: 1 of 2 runs on h100 has no gpufair/max_duration. It fits by "
        f"{time_of_day(-30)} at the latest, if no run ahead of it takes the GPUs that are released until "
        "then."
    )
    words = [line.split() for line in lines]
    assert ["1", "00000003", "nlp/pretrain", "milestone", "8", "guaranteed"] in [
        row[:6] for row in words
    ]
    assert "why 00000003 comes first    00000003   00000004" in result.stdout
    assert ["class", "guaranteed", "borrowing"] in [row[:3] for row in words]
    assert ["tier", "3,000", "2,000"] in words
    assert ["wait", "68", "120", "100", "points", "an", "hour"] in words
    assert {"share", "sum"} <= {row[0] for row in words if row}
    assert not {"preempted", "deadline", "source"} & {row[0] for row in words if row}
    assert "saturation" not in result.stdout
    assert "The class decides before points do" in result.stdout
    assert ["00000002", "speech", "standard", "8", "1h20m", "?", "borrowed"] in [
        row[:7] for row in words
    ]
    assert "`gpufair pools` shows what is free." in lines[-1]


def test_it_waits_behind_more_points(queue: Filling, gpufair: Gpufair) -> None:
    queue.run(asked(1, 8, ago=30, max_duration=3600.0), asked(2, 8, ago=30, team="vision"), ago=30)
    queue.submit(asked(3, 8, ago=10, team="speech", tier="critical"))
    queue.submit(asked(4, 1, ago=5, team="speech"), asked(5, 1, ago=4.99, team="speech"))
    result = gpufair("explain", "00000005")
    assert "why 00000003 comes first" in result.stdout
    queue.submit(asked(6, 1, ago=4.95, team="speech"))
    with queue.ledger.writing() as session:
        requests.block(session, {run_id(3): ("run_limit", "2 of 2")})
    result = gpufair("explain", "00000005")
    assert "why 00000004 comes first" in result.stdout, "what is blocked is in nobody's way"
    assert "Both are of the same class: more points go first." in result.stdout
    sums = next(line.split() for line in result.stdout.splitlines() if line.startswith("  sum"))
    assert sums[1] != sums[2], "a difference shows, however small"
    assert f"It starts by {time_of_day(-30)} at the latest, if running jobs use" in result.stdout


def test_it_waits_behind_a_team_that_has_borrowed_less(queue: Filling, gpufair: Gpufair) -> None:
    queue.run(asked(1, 8, ago=30, team="vision"), asked(2, 8, ago=30), ago=30)
    queue.submit(asked(3, 4, ago=90, team="vision"), asked(4, 4, ago=5, team="speech"))
    with queue.ledger.writing() as session:
        usage.accrue(session, {(Account("vision"), "h100"): 4000}, 0.0, time.time(), 3600.0)
    result = gpufair("explain", "00000003")
    assert "why 00000004 comes first" in result.stdout
    assert "Both borrow: the team that has borrowed less" in result.stdout
    saturation = next(line for line in result.stdout.splitlines() if "saturation" in line)
    first, second = (float(word.replace(",", "")) for word in saturation.split()[1:3])
    assert first < second
    assert "vision has 100 % of recent borrowing and a fair share of 33 %" in result.stdout


def test_it_is_first_in_line(queue: Filling, gpufair: Gpufair) -> None:
    queue.run(asked(1, 8, ago=30, max_duration=3600.0), asked(2, 8, ago=30, team="vision"), ago=30)
    queue.submit(asked(3, 8, ago=10))
    said = gpufair("explain", "00000003").stdout
    assert "No run is ahead of it in h100; it has 2," in said
    assert "comes first" not in said


def test_it_starts_at_the_next_pass(queue: Filling, gpufair: Gpufair) -> None:
    queue.passed(ago=3)
    queue.submit(asked(1, 8, ago=3))
    said = gpufair("explain", "00000001").stdout
    assert said.startswith("The queue daemon on gpuhost does not run: its last pass was 3 min ago")
    assert "(3 min), and starts on the daemon's next pass." in said
    assert "It starts as guaranteed, with 2," in said


def test_something_outside_the_decision_blocks_it(queue: Filling, gpufair: Gpufair) -> None:
    queue.submit(asked(1, 8))
    why = "Code location 'nlp' cannot be loaded (SyntaxError). It starts once that is mended."
    with queue.ledger.writing() as session:
        requests.block(session, {run_id(1): ("environment", why)})
    said = gpufair("explain", "00000001").stdout
    assert f"environment, place 1 in h100.\n{why}\n" in said
    assert "When it starts is not known: it depends on that." in said
    assert "It starts once its code location can be loaded" in said


def test_the_waiting_for_programs(queue: Filling, gpufair: Gpufair) -> None:
    queue.run(asked(1, 8, ago=90, team="vision", max_duration=7200.0), ago=90)
    queue.run(asked(2, 8, ago=80, team="speech"), ago=80)
    queue.submit(asked(3, 8, ago=41), asked(4, 4, ago=72, team="vision", max_duration=600.0))
    said = json.loads(gpufair("explain", "00000004", "--json").stdout)
    assert (said["run"], said["state"], said["gpus"]) == (run_id(4), "queued", 4)
    assert (said["pools"], said["max_duration_seconds"]) == (["h100"], 600.0)
    assert [(one["run"], one["place"]) for one in said["ahead"]] == [(run_id(3), 1)]
    assert said["waiting"]["place"] == 2
    assert said["compared"]["decided_by"] == "class"
    assert said["compared"]["comes_first"] == run_id(3)
    assert {row["name"] for row in said["compared"]["rows"]} >= {"tier", "wait", "share", "sum"}
    assert [one["run"] for one in said["holding"]] == [run_id(1), run_id(2)]
    assert said["holding"][1] == {
        "run": run_id(2),
        "team": "speech",
        "project": None,
        "tier": "standard",
        "pool": "h100",
        "gpus": 8,
        "being_launched": False,
        "lingering": False,
        "since": said["holding"][1]["since"],
        "about": None,
        "at_the_latest": None,
        "covered": False,
        "ungated": False,
    }
    assert [event["kind"] for event in said["events"]] == ["submitted"]


def test_it_started_before_another_that_waited(queue: Filling, gpufair: Gpufair) -> None:
    queue.run(asked(1, 8, ago=90, team="vision"), ago=90)
    queue.submit(asked(2, 8, ago=50, max_duration=3600.0), asked(3, 8, ago=60, team="vision"))
    queue.decide(ago=40)
    said = gpufair("explain", "00000002").stdout
    end = time_of_day(-20)
    assert (
        f"It holds 8 h100 on h2 since {time_of_day(40)} (40 min), until {end} at the latest."
        in said
    )
    assert "Its GPUs are within the quota: nlp uses 8 of its quota of 8." in said
    assert f"It started at {time_of_day(40)}, after it waited 10 min, as guaranteed with 2," in said
    assert "Next in line for h100 after that pass was 00000003 (insufficient_gpus)." in said
    assert "why it came before 00000003    00000002   00000003" in said
    assert "The class decides before points do" in said
    assert "`gpufair queue --pool h100` shows who waits for them." in said
    lease = json.loads(gpufair("explain", "00000002", "--json").stdout)["lease"]
    assert (lease["gpus"], lease["nodes"], lease["class"]) == (8, {"h2": 8}, "guaranteed")
    assert (lease["covered"], lease["ungated"], lease["released"]) == (True, False, None)


def test_it_started_past_a_larger_one_that_ranks_higher(queue: Filling, gpufair: Gpufair) -> None:
    queue.run(asked(1, 8, ago=90, team="vision"), ago=90)
    queue.run(asked(2, 4, ago=80, team="speech"), ago=80)
    queue.submit(asked(3, 8, ago=60), asked(4, 2, ago=50, team="speech"))
    queue.decide(ago=40)
    said = gpufair("explain", "00000004").stdout
    assert "after it waited 10 min, as borrowing with 2," in said
    assert "A run that ranks higher had to wait then: 00000003 (insufficient_gpus)." in said
    assert "why 00000003 ranks higher" in said


def test_it_started_before_another_of_its_team(queue: Filling, gpufair: Gpufair) -> None:
    """What the start itself took of the team's quota and share is no reason for it."""
    queue.run(asked(1, 12, ago=90, team="vision"), ago=90)
    queue.submit(*(asked(number, 4, ago=70 - number, team="speech") for number in (2, 3)))
    assert queue.decide(ago=40) == [run_id(2)]
    said = gpufair("explain", "00000002").stdout
    assert "why it came before 00000003" in said
    assert "Both are of the same class: more points go first." in said
    assert "saturation" not in said
    rows = json.loads(gpufair("explain", "00000002", "--json").stdout)["compared"]["rows"]
    assert "saturation" not in {row["name"] for row in rows}


def test_it_took_what_was_left_of_the_quota(queue: Filling, gpufair: Gpufair) -> None:
    queue.run(asked(1, 8, ago=90, team="speech"), ago=90)
    queue.submit(*(asked(number, 8, ago=70 - number) for number in (2, 3)))
    assert queue.decide(ago=40) == [run_id(2)]
    said = gpufair("explain", "00000002").stdout
    assert ["class", "guaranteed", "guaranteed"] in [line.split() for line in said.splitlines()]
    assert "Both are of the same class: more points go first." in said


def test_it_took_of_the_quota_what_a_larger_one_needs(queue: Filling, gpufair: Gpufair) -> None:
    queue.run(asked(1, 8, ago=90, team="speech"), ago=90)
    queue.submit(asked(2, 4, ago=60), asked(3, 8, ago=50))
    assert queue.decide(ago=40) == [run_id(2)]
    said = gpufair("explain", "00000002").stdout
    (class_,) = (line for line in said.splitlines() if line.startswith("  class"))
    assert class_.split()[1:3] == ["guaranteed", "borrowing"]
    assert class_.endswith("as it was after that pass")


def test_it_started_before_another_account_of_its_team(queue: Filling, gpufair: Gpufair) -> None:
    queue.adopt(WITH_A_PROJECT)
    queue.run(asked(1, 4, ago=90), asked(2, 4, ago=90, project="pretrain"), ago=90)
    queue.run(asked(3, 4, ago=80, team="speech"), ago=80)
    queue.submit(asked(4, 4, ago=60), asked(5, 4, ago=50, project="pretrain"))
    assert queue.decide(ago=40) == [run_id(4)]
    said = gpufair("explain", "00000004").stdout
    assert "as borrowing with 2," in said
    assert "why it came before 00000005" in said
    assert "Both are of the same class: more points go first." in said


def test_it_started_before_another_of_its_source(queue: Filling, gpufair: Gpufair) -> None:
    """The other waits anew from this start on, which tells nothing of why this one came first."""
    queue.run(asked(1, 12, ago=90, team="vision"), ago=90)
    queue.submit(*(asked(number, 4, ago=70 - number, source="sweep") for number in (2, 3)))
    assert queue.decide(ago=40) == [run_id(2)]
    said = gpufair("explain", "00000002").stdout
    first_words = {line.split()[0] for line in said.splitlines() if line.startswith("  ")}
    assert not {"wait", "source", "sum"} & first_words
    assert "Both have the same points: the earlier submission goes first." in said
    assert (
        "Both come from the same source. Its waiting time starts again with each of its runs"
        in said
    )


def test_it_runs_on_borrowed_gpus(queue: Filling, gpufair: Gpufair) -> None:
    queue.run(asked(1, 8, ago=5, team="vision"), ago=5)
    said = gpufair("explain", "00000001").stdout
    assert (
        "Its GPUs are borrowed: vision is 4 GPUs over its quota of 4. It is not stopped for other "
        "runs: preemption is off in the policy."
    ) in said
    assert "as borrowing with " in said
    assert "No other run waited in h100 then." in said
    assert "until it ends." in said
    assert json.loads(gpufair("explain", "00000001", "--json").stdout)["lease"]["covered"] is False


@pytest.mark.parametrize(
    ("rules", "says"),
    [
        (
            "preemption: {mode: auto, min_runtime: 2h}",
            "It may be stopped for runs within their own teams' quotas, or of a higher tier, from ",
        ),
        ("preemption: {mode: auto}", "of a higher tier, after 5 min of notice."),
        ("preemption: {mode: approval}", "after 5 min of notice, if a person approves."),
        (
            "borrowing: {max_duration: 1h}",
            "It may borrow for 1 h; then it is stopped for whoever waits, after 5 min of notice.",
        ),
    ],
)
def test_who_may_take_borrowed_gpus_back(
    queue: Filling, gpufair: Gpufair, rules: str, says: str
) -> None:
    queue.adopt(f"{POLICY}{rules}\n")
    queue.run(asked(1, 8, ago=90, team="vision"), ago=90)
    assert says in " ".join(gpufair("explain", "00000001").stdout.split())


def test_it_runs_on_the_quota_of_its_team(queue: Filling, gpufair: Gpufair) -> None:
    queue.adopt(WITH_A_PROJECT)
    queue.run(asked(1, 6, ago=5), ago=5)
    said = gpufair("explain", "00000001").stdout
    assert (
        "Its GPUs are within the quota of its team (nlp uses 6 of its quota of 8), and over that of"
        in said
    )
    assert "as guaranteed by its team with 2," in said


def test_it_had_to_wait_again_and_was_granted_again(queue: Filling, gpufair: Gpufair) -> None:
    queue.submit(asked(1, 8, ago=9))
    queue.decide(ago=9, begins=False)
    with queue.ledger.writing() as session:
        (lease,) = leases.open_leases(session)
        lifecycle.recall(session, lease.id, minutes(8), "code location is away")
    queue.decide(ago=7)
    said = gpufair("explain", "00000001").stdout
    assert said.splitlines()[1].startswith(f"submitted {minute(9)}:")
    assert f" · waits again {minute(8)}:" in said
    assert f" · granted {minute(7)}:" in said


def test_no_pool_is_proposed_that_could_never_hold_the_run(
    queue: Filling, gpufair: Gpufair
) -> None:
    queue.run(asked(1, 8, ago=9, team="vision"), asked(2, 8, ago=9), ago=9)
    queue.submit(asked(3, 8, ago=5), asked(4, 3, ago=4))
    assert "gpufair/pool" not in gpufair("explain", "00000003").stdout, "t4 has 4 GPUs"
    assert "gpufair/pool: h100,t4" in gpufair("explain", "00000004").stdout


def test_it_was_granted_without_a_record_of_why(queue: Filling, gpufair: Gpufair) -> None:
    queue.submit(asked(1, 8))
    with queue.ledger.writing() as session:
        lifecycle.grant(
            session,
            run_id(1),
            pool="h100",
            gpus=8000,
            nodes={"h1": 8000},
            class_=Class.GUARANTEED,
            at=time.time(),
            policy_version=1,
            data={"points": {"tier": 1.0, "charm": 2.0}, "saturation": 1.0, "submitted": 5.0},
        )
    said = gpufair("explain", "00000001").stdout
    assert "It was granted 8 h100 on h1 at" in said
    assert "It started at" not in said


def test_it_runs_without_a_grant(queue: Filling, gpufair: Gpufair) -> None:
    with queue.ledger.writing() as session:
        lifecycle.find(session, asked(1, 2, team="vision"), "h100", {}, time.time())
    said = gpufair("explain", "00000001").stdout
    assert "It uses 2 h100 since " in said
    assert "This queue did not start it, so it has no grant." in said


def test_it_is_over(queue: Filling, gpufair: Gpufair) -> None:
    queue.run(asked(1, 8, ago=50), ago=40)
    queue.end(1, ago=5)
    said = gpufair("explain", "00000001").stdout
    assert (
        f"It held 8 h100 on h1 from {time_of_day(40)} to {time_of_day(5)} (35 min): success."
        in said
    )
    assert "after it waited 10 min, as guaranteed" in said
    lease = json.loads(gpufair("explain", "00000001", "--json").stdout)["lease"]
    assert (lease["ended_as"], lease["covered"]) == ("success", None)


def test_it_was_short(queue: Filling, gpufair: Gpufair) -> None:
    queue.run(asked(1, 8, ago=50), ago=40)
    queue.end(1, ago=39.85)
    said = gpufair("explain", "00000001").stdout
    start, end = (clock(minutes(ago), minutes(0), seconds=True) for ago in (40, 39.85))
    assert f"It held 8 h100 on h1 from {start} to {end} (9 s): success." in said


def test_it_was_refused(queue: Filling, gpufair: Gpufair) -> None:
    why = "team 'vison' is not in the policy (known: nlp; did you mean 'vision'?). Set the tag."
    with queue.ledger.writing() as session:
        lifecycle.refuse(session, asked(1, 0, team="vison"), "unknown_team", why, time.time())
    said = gpufair("explain", "00000001").stdout
    assert f": unknown_team.\nT{why[1:]}\n" in said
    assert "launch it again; `gpufair policy show` says what the policy allows." in said
    refusal = json.loads(gpufair("explain", "00000001", "--json").stdout)["refusal"]
    assert (refusal["code"], refusal["message"]) == ("unknown_team", why)


def test_it_was_refused_before_all_was_known(queue: Filling, gpufair: Gpufair) -> None:
    bare = asked(1, 0, team="", tier="")
    teams = asked(2, 0, team="vision", tier="", job_name="")
    with queue.ledger.writing() as session:
        for ask in (bare, teams):
            lifecycle.refuse(session, ask, "invalid_request", "gpufair/gpus is 'x'", time.time())
    said = gpufair("explain", "00000001").stdout
    assert said.startswith(f"{run_id(1)} · train\n")
    assert "\ngpufair/gpus is 'x'.\n" in said
    assert gpufair("explain", "00000002").stdout.startswith(f"{run_id(2)} · vision\n")


def test_it_was_cancelled(queue: Filling, gpufair: Gpufair) -> None:
    queue.submit(asked(1, 8, ago=30))
    with queue.ledger.writing() as session:
        lifecycle.cancel(session, [run_id(1)], minutes(10), "canceled")
    said = gpufair("explain", "00000001").stdout
    assert (
        f"It was cancelled at {time_of_day(10)}, after waiting 20 min: the run is canceled." in said
    )
    cancelled = json.loads(gpufair("explain", "00000001", "--json").stdout)["cancelled"]
    assert cancelled["why"] == "canceled"


def test_an_id_that_begins_several(queue: Filling, gpufair: Gpufair) -> None:
    queue.submit(*(asked(number, 8) for number in range(10, 30)))
    said = gpufair("explain", "0000001", code=1).stderr
    assert "The ids of several runs begin with 0000001; give more of it:" in said
    assert f"{run_id(13)}  nlp standard train, queued, submitted" in said
    assert said.count(" queued, ") == 10


def test_a_whole_id_that_begins_another(queue: Filling, gpufair: Gpufair) -> None:
    longer = f"{run_id(1)}-again"
    queue.submit(asked(1, 8), asked(2, 8, id=longer, run_id=longer))
    assert gpufair("explain", run_id(1)).stdout.startswith(f"{run_id(1)} · nlp")


def test_a_run_without_gpus(queue: Filling, instance: DagsterInstance, gpufair: Gpufair) -> None:
    run = instance.create_run_for_job(quiet, status=DagsterRunStatus.STARTED)
    said = gpufair("explain", run.run_id[:8]).stdout
    assert said.startswith(f"{run.run_id} · quiet\n")
    assert "It asks for no GPU: Dagster starts it by its own rules" in said
    assert "Its status is started." in said
    data = json.loads(gpufair("explain", run.run_id, "--json").stdout)
    assert (data["state"], data["asks_for_gpus"]) == ("no_gpus", False)


def test_a_run_with_gpus_that_nobody_recorded(
    queue: Filling, instance: DagsterInstance, gpufair: Gpufair
) -> None:
    tags = {"gpufair/gpus": "8"}
    run = instance.create_run_for_job(quiet, tags=tags, status=DagsterRunStatus.STARTED)
    said = gpufair("explain", run.run_id).stdout
    assert "It asks for GPUs, but it is not in the GPU ledger. Its status is started." in said
    data = json.loads(gpufair("explain", run.run_id, "--json").stdout)
    assert (data["state"], data["asks_for_gpus"]) == ("unrecorded", True)


@pytest.mark.parametrize("words", [("feedbeef",), ("feedbeef", "--json")])
def test_a_run_that_is_not_there(queue: Filling, gpufair: Gpufair, words: tuple[str, ...]) -> None:
    result = gpufair("explain", *words, code=1)
    assert "No run of this Dagster instance has an id that begins with feedbeef." in result.stderr
    assert result.stdout == ""


def test_no_id_at_all(queue: Filling, gpufair: Gpufair) -> None:
    assert "RUN_ID" in gpufair("explain", " ", code=2).stderr


def test_a_reservation_that_went_to_another_run(queue: Filling, gpufair: Gpufair) -> None:
    queue.run(asked(1, 8, ago=90, team="vision"), asked(2, 8, ago=90, team="speech"), ago=90)
    queue.submit(asked(3, 8, ago=41))
    queue.reserve(ago=40)
    queue.submit(asked(4, 8, ago=30, tier="milestone"))
    queue.reserve(ago=29)
    history = gpufair("explain", "00000003").stdout.splitlines()[1]
    assert f" · reserved {minute(40)}:" in history
    assert f" · reservation lost {minute(29)}:" in history
    assert history.endswith(" to 00000004")
    queue.end(1, ago=20)
    queue.reserve(ago=20)
    assert queue.decide(ago=20) == [run_id(4)]
    history = gpufair("explain", "00000004").stdout.splitlines()[1]
    assert "reserved" in history and "granted" in history
    assert "lost" not in history, "it started"
