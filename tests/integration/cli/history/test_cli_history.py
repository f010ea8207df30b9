"""What happened to a run, and which runs were refused."""

from __future__ import annotations

import json
from collections.abc import Callable

from cli_samples import Filling, asked, minute, minutes, run_id, time_of_day
from click.testing import Result

from dagster_gpufair.engine.policy_file import InForce
from dagster_gpufair.gate.submission.admission import Refusal, Submission
from dagster_gpufair.gate.submission.recording import record
from dagster_gpufair.ledger import events, leases, lifecycle
from dagster_gpufair.policy.loading import parse_policy

Gpufair = Callable[..., Result]


def said(result: Result) -> list[tuple[str, str]]:
    """(when, what) of each event."""
    rows = [line.split("  ", 1) for line in result.stdout.splitlines()[2:]]
    return [(row[0].strip(), row[1].strip()) for row in rows if len(row) == 2]


def test_a_run_from_its_submission_to_its_end(queue: Filling, gpufair: Gpufair) -> None:
    queue.run(asked(1, 8, ago=60, team="vision"), ago=60)
    queue.run(asked(2, 8, ago=59, team="speech"), ago=59)
    queue.submit(asked(3, 8, ago=50, max_duration=7200.0))
    queue.reserve(ago=49)
    queue.end(1, ago=40)
    queue.decide(ago=40)
    queue.reserve(ago=40)
    queue.end(3, ago=10)
    result = gpufair("history", "00000003")
    assert result.stdout.startswith(f"{run_id(3)} · nlp standard · train\n")
    told = said(result)
    assert [what for _, what in told] == [
        "The run is submitted: team nlp asks for 8 h100, for at most 2 h.",
        "8 h100 on h1 are reserved for the run.",
        "8 h100 on h1 are granted to the run, guaranteed, after it waited 10 min.",
        "The run's work begins.",
        "The run's reservation in h100 ends.",
        "The run ends (success), and 8 h100 are released after 30 min.",
    ]
    assert minute(50) in told[0][0] and told[0][0].endswith(" NOON"), "with its day and its zone"
    assert "`gpufair explain 00000003` says why it started then." in result.stdout


def test_a_run_that_waits_again_and_is_cancelled(queue: Filling, gpufair: Gpufair) -> None:
    queue.submit(asked(1, 1, ago=9, min_gpus=500))
    queue.decide(ago=9, begins=False)
    with queue.ledger.writing() as session:
        (lease,) = leases.open_leases(session)
        lifecycle.recall(session, lease.id, minutes(8), "code location is away")
        lifecycle.cancel(session, [run_id(1)], minutes(7), "canceled")
    assert [what for _, what in said(gpufair("history", "00000001"))] == [
        "The run is submitted: team nlp asks for 0.5 to 1 h100.",
        "1 h100 on h1 is granted to the run, guaranteed, at once.",
        "The run waits again: code location is away.",
        "The run does not wait any more: it is canceled.",
    ]


def test_the_reasons_that_a_run_waited_for(queue: Filling, gpufair: Gpufair) -> None:
    queue.run(asked(1, 16, ago=60, team="vision"), ago=60)
    queue.submit(asked(2, 8, ago=50))
    with queue.ledger.writing() as session:
        for reason, why, ago in (
            ("insufficient_gpus", "needs 8 h100 on one node; h100 has no free GPUs.", 49),
            ("environment", "Code location 'nlp' cannot be loaded.", 20),
        ):
            assert lifecycle.waits(session, run_id(2), reason, why, minutes(ago))
        assert not lifecycle.waits(session, run_id(1), "environment", "It runs.", minutes(20))
    result = gpufair("history", "00000002")
    told = said(result)
    assert [what for _, what in told[1:]] == [
        "The run waits (insufficient_gpus): needs 8 h100 on one node; h100 has no free GPUs.",
        "The run waits (environment): Code location 'nlp' cannot be loaded.",
    ]
    assert minute(49) in told[1][0]
    assert len(said(gpufair("history", "00000001"))) == 3
    assert "waits" not in gpufair("explain", "00000002").stdout.splitlines()[1]


def test_a_run_that_is_over_while_its_processes_hold_gpus(queue: Filling, gpufair: Gpufair) -> None:
    queue.run(asked(1, 8, ago=30), ago=30)
    with queue.ledger.writing() as session:
        (lease,) = leases.open_leases(session)
        lifecycle.saw_processes(session, lease.id, {"4712": 7_100, "987": 7_000})
        lifecycle.linger(session, lease.id, minutes(20), "failure", minutes(19))
    result = gpufair("history", "00000001")
    assert said(result)[3][1].startswith(f"The run is over since {minute(20)}")
    assert said(result)[3][1].endswith("but processes of it go on: it still holds its GPUs.")
    told = " ".join(result.stdout.split())
    assert f"It holds 8 h100 on h1 since {time_of_day(30)} (30 min), though the run is over" in told
    assert "`ps -o pid,lstart,args -p 987,4712` shows which of them go on." in told
    lease_json = json.loads(gpufair("explain", "00000001", "--json").stdout)["lease"]
    assert lease_json["processes"] == [987, 4712]
    data = json.loads(gpufair("history", "00000001", "--json").stdout)
    assert (data["state"], data["holds_gpus"], data["lingering"]) == ("granted", True, True)

    queue.end(1, "failure", ago=5)
    result = gpufair("history", "00000001")
    times = [when for when, _ in said(result)]
    assert times == sorted(times)
    assert said(result)[-1][1] == "The run ends (failure), and 8 h100 are released after 25 min."
    assert "It holds" not in result.stdout
    explained = " ".join(gpufair("explain", "00000001").stdout.split())
    assert f"It held 8 h100 on h1 from {time_of_day(30)} to {time_of_day(5)} (25 min)" in explained
    assert "but processes of it went on and held the GPUs." in explained
    data = json.loads(gpufair("history", "00000001", "--json").stdout)
    assert (data["holds_gpus"], data["lingering"]) == (False, False)


def test_what_this_version_does_not_know_is_told_with_its_data(
    queue: Filling, gpufair: Gpufair
) -> None:
    queue.submit(asked(1, 8, ago=9))
    with queue.ledger.writing() as session:
        for kind, data in (
            ("teleported", {"to": "h9", "lease": 7, "nodes": {"h1": 8000}}),
            ("granted", {"gpus": "many"}),
            ("\x1b[31mred", {"why": "\x1b[0m"}),
        ):
            events.append(session, kind, minutes(5), run_id=run_id(1), pool="h100", data=data)
    told = [what for _, what in said(gpufair("history", "00000001"))]
    assert told[1:] == [
        "teleported: to h9, nodes h1=8000.",
        "granted: gpus many.",
        "\\x1b[31mred: why \\x1b[0m.",
    ]


def test_who_has_the_reservation_now(queue: Filling, gpufair: Gpufair) -> None:
    queue.submit(asked(1, 8, ago=9))
    with queue.ledger.writing() as session:
        data = {"request": run_id(1), "of_quota": False, "instead": [run_id(2)]}
        events.append(session, "unreserved", minutes(5), run_id=run_id(1), pool="h100", data=data)
    told = said(gpufair("history", "00000001"))
    assert told[-1][1] == "The run's reservation in h100 ends; 00000002 has it now."


def test_the_history_for_programs(queue: Filling, gpufair: Gpufair) -> None:
    queue.run(asked(1, 8, ago=9, source="ana@lab"), ago=5)
    data = json.loads(gpufair("history", "00000001", "--json").stdout)
    assert (data["run"], data["state"]) == (run_id(1), "granted")
    assert data["launched_by"] == {"what": "user", "name": "ana@lab", "user": "ana@lab"}
    submitted, granted, started = data["events"]
    assert started["kind"] == "started"
    assert (submitted["kind"], submitted["data"]["gpus"]) == ("submitted", 8)
    assert granted["data"]["nodes"] == {"h1": 8}
    assert granted["data"]["submitted"] == submitted["at"] == submitted["data"]["submitted"]


def test_a_run_that_the_ledger_does_not_know(queue: Filling, gpufair: Gpufair) -> None:
    said = gpufair("history", "feedbeef", code=1).stderr
    assert "No run of this Dagster instance has an id that begins with feedbeef." in said
    assert "is empty" in gpufair("history", " ", code=2).stderr


def test_runs_that_were_refused(queue: Filling, gpufair: Gpufair) -> None:
    why = "it asks for 32 h100, and the pool has 16. Ask for fewer"
    with queue.ledger.writing() as session:
        for number, team, ago in ((1, "nlp", 30), (2, "vision", 20), (3, "nlp", 10)):
            request = asked(number, 32, ago=ago, team=team, source="ana@lab")
            lifecycle.refuse(session, request, "exceeds_pool", why, minutes(ago))
    result = gpufair("refused")
    rows = [line.split() for line in result.stdout.splitlines()]
    assert [row[2] for row in rows[1:4]] == ["00000003", "00000002", "00000001"]
    assert rows[1][:2] == [minute(10), "NOON"]
    assert rows[1][3:6] == ["nlp", "train", "ana@lab"]
    assert "exceeds_pool: It asks for 32 h100, and the pool has 16. Ask for fewer." in result.stdout
    assert "`gpufair history 00000003` says all that happened to a run." in result.stdout
    only = json.loads(gpufair("refused", "--team", "nlp", "--limit", "1", "--json").stdout)
    (newest,) = only["refused"]
    assert (newest["run"], newest["code"], newest["message"]) == (run_id(3), "exceeds_pool", why)
    (event,) = said(gpufair("history", "00000002"))
    assert (
        event[1]
        == "The run is refused (exceeds_pool): it asks for 32 h100, and the pool has 16. Ask for fewer."
    )


def test_nothing_was_refused(queue: Filling, gpufair: Gpufair) -> None:
    assert gpufair("refused").stdout == (
        "No run was refused. `gpufair queue` shows those that wait.\n"
    )
    assert gpufair("refused", "--team", "nlp").stdout.startswith("No run of team nlp was refused.")


def test_what_could_not_be_read_of_a_refused_run_is_null_and_the_rest_is_there(
    queue: Filling, gpufair: Gpufair
) -> None:
    in_force = InForce(1, parse_policy(queue.text))
    given = {
        1: {"gpus": "many"},
        2: {
            "gpus": "4-32",
            "team": "vison",
            "pool": "h100, t4",
            "tier": "standard",
            "project": "lab",
        },
    }
    with queue.ledger.writing() as session:
        for number, tags in given.items():
            written = {f"gpufair/{key}": value for key, value in tags.items()}
            submission = Submission(run_id(number), "train", "jobs", written, minutes(9 - number))
            assert isinstance(record(session, in_force, submission), Refusal)
    second, first = json.loads(gpufair("refused", "--json").stdout)["refused"]
    asked_for = ("team", "project", "tier", "gpus", "pools")
    assert [first[key] for key in asked_for] == [None, None, None, None, []]
    assert [second[key] for key in asked_for] == ["vison", "lab", "standard", 32, ["h100", "t4"]]
    explained = json.loads(gpufair("explain", "00000001", "--json").stdout)
    assert [explained[key] for key in asked_for] == [None, None, None, None, []]
    (event,) = json.loads(gpufair("history", "00000001", "--json").stdout)["events"]
    assert event["data"].keys().isdisjoint(("team", "tier", "gpus"))
