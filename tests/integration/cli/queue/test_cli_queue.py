"""What a person reads in ``gpufair queue``."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest
from cli_samples import POLICY, WITH_A_PROJECT, Filling, asked, run_id, time_of_day
from click.testing import Result

from dagster_gpufair.ledger import lifecycle, requests, status
from dagster_gpufair.ledger.status import POLICY_FILE, UNCOUNTED

Gpufair = Callable[..., Result]

PLACES = [str(place) for place in range(1, 100)]


def rows(result: Result) -> list[list[str]]:
    """The lines of its tables that begin with a place, in words."""
    lines = [line.split() for line in result.stdout.splitlines()]
    return [words for words in lines if words and (words[0] == "-" or words[0] in PLACES)]


BACKFILL = {"what": "backfill", "name": "qwertzui"}


@pytest.mark.parametrize("storage", ["sqlite", "postgres"], indirect=True)
def test_a_pool_with_its_line(queue: Filling, gpufair: Gpufair) -> None:
    queue.run(asked(1, 8, ago=90, team="vision", max_duration=7200.0), ago=90)
    queue.run(asked(2, 4, ago=80, team="vision"), ago=80)
    queue.submit(
        asked(3, 8, ago=41, tier="milestone", project="pretrain"),
        asked(4, 2, ago=72, team="speech", source="ana@lab"),
    )
    queue.submit(asked(5, 6, ago=10, min_gpus=5000, source="qwertzui", launched_by=BACKFILL))
    result = gpufair("queue")
    assert result.stdout.splitlines()[0].startswith(
        "h100 · 16 GPUs · 12 in use (8 borrowed) · 4 free · 3 waiting    policy v1, "
    )
    assert [words[:8] for words in rows(result)] == [
        ["-", "00000004", "speech", "train", "standard", "2", "1h12m", "ana@lab"],
        ["1", "00000003", "nlp/pretrain", "train", "milestone", "8", "41m", "job"],
        ["2", "00000005", "nlp", "train", "standard", "5-6", "10m", "backfill"],
    ]
    class_, points, *starts = rows(result)[1][8:13]
    assert (class_, " ".join(starts)) == ("guaranteed", f"by {time_of_day(-30)}")
    assert 3000 < float(points.replace(",", "")) < 5000
    assert "insufficient_gpus: the most free on one node is 2 (2 of 16 in all)\n" in result.stdout
    assert (
        "  reserved for 00000003 (nlp/pretrain, milestone, 8 GPUs): 8 h100 on h1 from "
        f"{time_of_day(-30)} at the latest\n"
    ) in result.stdout
    assert "t4 · 4 GPUs · none in use · 4 free (1 held back) · none waiting" in result.stdout
    assert "`gpufair explain 00000004` says more about a run." in result.stdout
    assert result.stderr == ""


def test_long_lines_are_cut_short_and_can_be_had_whole(queue: Filling, gpufair: Gpufair) -> None:
    queue.run(asked(1, 3, team="vision", pools=("t4",)))
    queue.submit(*(asked(number, 1, pools=("t4",)) for number in range(10, 40)))
    short, whole = gpufair("queue"), gpufair("queue", "--all")
    assert len(rows(short)) == 20
    assert "and 10 more; --all shows them" in short.stdout
    assert [words[0] for words in rows(whole)] == [str(place) for place in range(1, 31)]
    assert "more;" not in whole.stdout
    assert short.stdout.count("reserve_held: 1 GPU is held back for speech") == 1
    assert short.stdout.count("reserve_held, as above") == 19
    assert len(json.loads(gpufair("queue", "--json").stdout)["waiting"]) == 30


def test_in_use_on_a_node_in_maintenance(queue: Filling, gpufair: Gpufair) -> None:
    queue.run(asked(1, 8, ago=90, team="vision"), ago=90)
    queue.run(asked(2, 5, ago=80), ago=80)
    queue.cordon("h100", "h2", ago=10)
    assert gpufair("queue").stdout.startswith(
        "h100 · 16 GPUs (8 in maintenance) · 13 in use (5 of them in maintenance, 4 borrowed) · "
        "none free · none waiting"
    )
    assert "h1 0 of 8, h2 in maintenance (5 in use)" in gpufair("pools").stdout


def test_what_only_the_quota_of_its_team_covers(queue: Filling, gpufair: Gpufair) -> None:
    queue.adopt(WITH_A_PROJECT)
    queue.run(asked(1, 16, ago=90, team="speech"), ago=90)
    queue.submit(asked(2, 6, ago=50), asked(3, 4, ago=5))
    first, second = (" ".join(words) for words in rows(gpufair("queue")))
    assert " guaranteed 2," in first
    assert " guaranteed by its team 2," in second
    assert " points as guaranteed by its team):" in gpufair("explain", "00000002").stdout


def test_one_pool_or_one_team(queue: Filling, gpufair: Gpufair) -> None:
    queue.run(asked(1, 8, ago=9), asked(2, 8, ago=8, team="vision"), ago=5)
    queue.submit(asked(3, 8, ago=4, tier="milestone"), asked(4, 4, ago=3, team="vision"))
    queue.run(asked(5, 3, team="vision", pools=("t4",)))
    queue.submit(asked(6, 1, team="vision", pools=("t4",)))
    assert "t4" not in gpufair("queue", "--pool", "h100").stdout
    of_vision = rows(gpufair("queue", "--team", "vision"))
    assert [words[:2] for words in of_vision] == [["2", "00000004"], ["1", "00000006"]]
    assert "No run waits here." in gpufair("queue", "--pool", "h100", "--team", "speech").stdout


@pytest.mark.parametrize(
    ("option", "given", "said"),
    [
        ("--pool", "h10", "unknown pool 'h10'; did you mean 'h100'? (known: h100, t4)."),
        ("--team", "vison", "unknown team 'vison'; did you mean 'vision'?"),
    ],
)
def test_a_name_that_is_not_there(
    queue: Filling, gpufair: Gpufair, option: str, given: str, said: str
) -> None:
    assert said in gpufair("queue", option, given, code=1).stderr


def test_nothing_waits(queue: Filling, gpufair: Gpufair) -> None:
    said = gpufair("queue").stdout
    assert "h100 · 16 GPUs · none in use · 16 free · none waiting" in said
    assert "No run waits here. `gpufair pools` shows the GPUs" in said


def test_a_daemon_that_does_not_pass(queue: Filling, gpufair: Gpufair) -> None:
    queue.passed(ago=5)
    said = gpufair("queue").stdout
    assert "The queue daemon on gpuhost does not run: its last pass was 5 min ago, at " in said
    assert "No run starts until it does. Start `dagster dev` or `dagster-daemon run`." in said
    daemon = json.loads(gpufair("queue", "--json").stdout)["daemon"]
    assert (daemon["host"], daemon["overdue"]) == ("gpuhost", True)


def test_a_daemon_that_never_passed(queue: Filling, gpufair: Gpufair) -> None:
    with queue.ledger.writing() as session:
        status.put(session, "daemon", None, 0.0)
    assert "No queue daemon has run on this instance yet" in gpufair("queue").stdout


def test_a_broken_policy_file(queue: Filling, gpufair: Gpufair) -> None:
    trouble = {"file": "gpufair.yaml", "summary": "gpufair.yaml has 1 error (x)", "problems": []}
    with queue.ledger.writing() as session:
        status.put(session, POLICY_FILE, trouble, 0.0)
    said = gpufair("queue").stdout
    assert "gpufair.yaml has 1 error (x). Policy v1 stays in force." in said
    found = json.loads(gpufair("queue", "--json").stdout)["policy"]
    assert (found["version"], found["file_trouble"]) == (1, "gpufair.yaml has 1 error (x)")


@pytest.mark.parametrize("command", ["queue", "pools", "teams"])
def test_gpus_that_nobody_can_count(queue: Filling, gpufair: Gpufair, command: str) -> None:
    with queue.ledger.writing() as session:
        status.put(session, UNCOUNTED, {run_id(1): "which pool it is in is not known"}, 0.0)
    said = " ".join(gpufair(command).stdout.split())
    assert f"Run {run_id(1)} uses GPUs without a grant, and they cannot be counted" in said
    assert "which pool it is in is not known. Other runs may be given its GPUs." in said


def test_use_without_a_grant(queue: Filling, gpufair: Gpufair) -> None:
    with queue.ledger.writing() as session:
        lifecycle.find(session, asked(7, 2, team="vision"), "h100", {}, time.time())
    said = gpufair("queue").stdout
    assert f"Run {run_id(7)} of team vision uses 2 h100 without a grant since " in said
    (ungated,) = json.loads(gpufair("queue", "--json").stdout)["ungated"]
    assert (ungated["run"], ungated["gpus"], ungated["pool"]) == (run_id(7), 2, "h100")


def test_what_something_else_blocks(queue: Filling, gpufair: Gpufair) -> None:
    queue.submit(asked(1, 8))
    why = "This Dagster instance runs 2 runs at once, and no more."
    with queue.ledger.writing() as session:
        requests.block(session, {run_id(1): ("run_limit", why)})
    assert f"run_limit: {why}" in gpufair("queue").stdout


def test_a_long_error_is_cut_in_a_row(queue: Filling, gpufair: Gpufair) -> None:
    queue.submit(asked(1, 8))
    why = f"Code location 'nlp' cannot be loaded ({'x' * 300}). It starts once that is mended."
    with queue.ledger.writing() as session:
        requests.block(session, {run_id(1): ("environment", why)})
    row = next(row for row in gpufair("queue").stdout.splitlines() if "environment" in row)
    assert "environment: Code location 'nlp' cannot be loaded (xxx" in row
    assert row.endswith("x…") and len(row) < 250
    assert why in gpufair("explain", "00000001").stdout


def test_a_pool_and_a_team_that_are_no_more(queue: Filling, gpufair: Gpufair) -> None:
    queue.submit(asked(1, 2, pools=("a100",)), asked(2, 2, team="robots"))
    said = gpufair("queue").stdout
    assert "a100 · not in the policy · none in use · none free · 1 waiting" in said
    assert "environment: needs 2 " in said
    assert (
        "pool a100 is not in the policy (pools: h100, t4). Launch the run again for a pool" in said
    )
    assert "team robots is not in the policy" in said
    assert rows(gpufair("queue", "--team", "robots"))[0][1] == "00000002"


RENAMED = POLICY.replace("h100", "hopper")


def test_who_holds_gpus_of_a_pool_that_was_renamed(queue: Filling, gpufair: Gpufair) -> None:
    """The GPUs count where the nodes are now; the runs are shown with the pool that they were given."""
    queue.run(asked(1, 8, ago=30), ago=30)
    queue.adopt(RENAMED, ago=20)
    said = gpufair("queue", "--all").stdout
    assert (
        "h100 · not in the policy; its nodes are in hopper now · 8 in use · none free · none waiting"
        in said
    )
    assert "hopper · 16 GPUs · 8 in use" in said
    below = said[said.index("h100 · not in the policy") :]
    assert any(row.startswith("00000001") for row in below.splitlines())
    found = json.loads(gpufair("queue", "--json").stdout)
    assert [(one["run"], one["pool"]) for one in found["running"]] == [(run_id(1), "h100")]
    (gone,) = [pool for pool in found["pools"] if pool["pool"] == "h100"]
    assert (gone["gpus"], gone["in_use"], gone["counts_in"]) == (0, 8, ["hopper"])
    assert "not in the policy; its nodes are in hopper now" in gpufair("pools").stdout


def test_who_holds_gpus_of_a_pool_that_was_removed(queue: Filling, gpufair: Gpufair) -> None:
    queue.run(asked(1, 2, ago=30, team="vision", pools=("t4",)), ago=30)
    queue.submit(asked(2, 1, ago=10, team="vision", pools=("t4",)))
    without = "pools: {h100: {nodes: {h1: 8, h2: 8}}}\nteams: {nlp: {}, vision: {quota: {h100: 4}}}"
    queue.adopt(without, ago=5)
    said = gpufair("queue", "--all").stdout
    below = said[said.index("t4 · not in the policy · 2 in use (2 borrowed) · none free") :]
    assert any(row.startswith("00000001") for row in below.splitlines())
    explained = " ".join(gpufair("explain", "00000002").stdout.split())
    assert "environment, place 1 in t4" in explained
    assert "is not in the policy (pools: h100). Launch the run again for a pool" in explained
    assert "gpufair/pool: h100 " in explained, "and not t4,h100, which would be refused"
    assert "It starts once the policy has its team, tier and pool again." in explained


def test_the_same_for_programs(queue: Filling, gpufair: Gpufair) -> None:
    queue.run(
        asked(1, 8, ago=30, max_duration=3600.0), asked(2, 7.5, ago=30, team="vision"), ago=30
    )
    queue.submit(asked(3, 4, ago=10, project="pretrain", min_gpus=2000))
    said = json.loads(gpufair("queue", "--json").stdout)
    assert list(said) == [
        "schema", "at", "policy", "daemon", "pools", "waiting", "running", "reservations", "ungated",
    ]  # fmt: skip
    assert said["at"].endswith("Z")
    pool = said["pools"][0]
    assert (pool["pool"], pool["gpus"], pool["in_use"], pool["free"]) == ("h100", 16, 15.5, 0.5)
    assert pool["nodes"]["h2"] == {"gpus": 8, "used": 7.5, "free": 0.5, "cordoned": None}
    (waiting,) = said["waiting"]
    assert 599 < waiting.pop("waited_seconds") < 660
    points = waiting.pop("points")
    assert points["tier"] == 2000
    assert points["sum"] == pytest.approx(sum(points.values()) - points["sum"], abs=0.01)
    assert waiting.pop("submitted") < waiting.pop("at_the_latest")
    assert waiting.pop("message").startswith("needs 2 to 4 ")
    assert waiting == {
        "run": run_id(3),
        "job": "train",
        "launched_by": {"what": "job", "name": "train", "user": None},
        "team": "nlp",
        "project": "pretrain",
        "tier": "standard",
        "pool": "h100",
        "place": 1,
        "gpus": 4,
        "min_gpus": 2,
        "class": "borrowing",
        "saturation": 0.5,
        "reason": "insufficient_gpus",
        "blockers": [],
        "about": None,
    }


def test_no_colour_where_none_is_wanted(
    queue: Filling, gpufair: Gpufair, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.passed(ago=9)
    assert "\x1b" not in gpufair("queue").stdout
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    assert "\x1b[31m" in gpufair("queue").stdout
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[3" not in gpufair("queue").stdout


HOSTILE = [
    "[red]markup[/red] [link=http://x]y[/link]",
    "\x1b[2J\x1b]0;title\x07clear",
    "two\nlines\r\nand\ttabs",
    "\u202egnp.exe\u200b",
    "\x9b31m c1",
    ":boom: 🚀 发射 день",
    "x" * 10_000,
]


@pytest.mark.parametrize("hostile", HOSTILE)
def test_no_text_acts_on_the_terminal(queue: Filling, gpufair: Gpufair, hostile: str) -> None:
    queue.submit(
        asked(1, 8, project=hostile, kind=hostile, job_name=hostile, source=hostile),
        asked(2, 8, team=hostile, tier=hostile, pools=(hostile,)),
    )
    with queue.ledger.writing() as session:
        requests.block(session, {run_id(1): ("environment", hostile)})
        lifecycle.find(session, asked(3, 1, team=hostile), "h100", {}, time.time())
    results = [
        gpufair("queue"),
        gpufair("pools"),
        gpufair("teams"),
        gpufair("explain", run_id(1)),
        gpufair("explain", run_id(2)),
        gpufair("explain", run_id(3)),
        gpufair("explain", "0000000", code=1),
        gpufair("explain", hostile, code=1),
        gpufair("queue", "--team", f"{hostile}!", code=1),
    ]
    for result in results:
        lines = result.output.split("\n")
        assert all(sign.isprintable() for line in lines for sign in line)
        assert max(len(line) for line in lines) < 4000
    assert [words[1] for words in rows(results[0])] == ["00000001", "00000002"]
    if hostile.isprintable() and len(hostile) < 48:
        assert hostile in results[0].stdout
    for words in (("queue",), ("explain", run_id(1))):
        assert gpufair(*words, "--json").stdout.isascii()
