"""Why a run waits, for what, what would help and about when: for each reason."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from cli_samples import POLICY, WITH_A_PROJECT, Filling, asked, run_id, time_of_day, utc
from click.testing import Result

from dagster_gpufair.ledger import requests

Gpufair = Callable[..., Result]

HOUR = 3600.0


def row(result: Result, run: str) -> str:
    """The line of the queue that is about a run."""
    return next(line for line in result.stdout.splitlines() if run in line.split()[1:2])


def why(result: Result, run: str) -> str:
    """What its line ends with: the reason, and what it waits for."""
    return row(result, run).split("  ")[-1].strip()


def helps(result: Result) -> list[list[str]]:
    """The changes of tags with which it would start now, and on what."""
    lines = result.stdout.splitlines()
    at = next(at for at, line in enumerate(lines) if line.startswith("It would start now with"))
    rest = lines[at + 1 :]
    return [line.split() for line in rest[: rest.index("")]]


@pytest.fixture
def kept(queue: Filling) -> Filling:
    """Four GPUs are free, and reserved for 00000003, which needs eight on a node: 00000004 has to wait."""
    queue.run(asked(1, 4, ago=60, team="vision", max_duration=2 * HOUR), ago=60)
    queue.run(asked(2, 8, ago=60, team="speech"), ago=60)
    queue.submit(asked(3, 8, ago=30, tier="milestone"), asked(4, 2, ago=50, team="speech"))
    return queue


def test_it_is_kept_for_a_better_one(kept: Filling, gpufair: Gpufair) -> None:
    assert why(gpufair("queue"), "00000004") == "lower_priority: reserved for 00000003"
    result = gpufair("explain", "00000004")
    lines = result.stdout.splitlines()
    assert "00000003 (nlp, milestone, 8 GPUs)" in lines[3]
    at = lines.index("Reserved for other runs:")
    assert " ".join(lines[at + 2].split()) == (
        f"00000003 nlp milestone 8 30m 8 h100 on h1 from {time_of_day(-60)} at the latest"
    )
    assert "why 00000003 comes first" in result.stdout
    pool, (tag, minutes, *rest) = helps(result)
    assert pool == ["gpufair/pool:", "h100,t4", "on", "2", "t4"]
    assert (tag, *rest) == ("gpufair/max_duration:", "on", "2", "h100")
    assert int(minutes.rstrip("m")) in range(30, 60), "so much is left until then, in whole minutes"
    assert "`gpufair queue` shows what is reserved for whom." in lines[-1]
    said = json.loads(gpufair("explain", "00000004", "--json").stdout)
    (blocker,) = said["blockers"]
    assert (blocker["what"], blocker["run"], blocker["tier"]) == (
        "request",
        run_id(3),
        "milestone",
    )
    assert (blocker["reservation"]["gpus"], blocker["reservation"]["nodes"]) == (8, {"h1": 8})
    assert said["waiting"]["blockers"] == [run_id(3)]
    assert said["remedies"][1] == {
        "change": "max_duration",
        "tag": "gpufair/max_duration",
        "value": minutes,
        "pool": "h100",
        "gpus": 2,
        "stops": [],
    }


def test_what_is_kept_for_it(kept: Filling, gpufair: Gpufair) -> None:
    result = gpufair("explain", "00000003")
    when = time_of_day(-60)
    assert (
        f"It starts by {when} at the latest, if running jobs use their full max_duration"
        in result.stdout
    )
    assert f"Reserved for it: 8 h100 on h1 from {when} at the latest." in result.stdout
    assert "Reserved for other runs:" not in result.stdout
    reservation = json.loads(gpufair("explain", "00000003", "--json").stdout)["reservation"]
    assert (reservation["run"], reservation["pool"], reservation["gpus"]) == (run_id(3), "h100", 8)
    assert reservation["from"].endswith("Z")
    (same,) = json.loads(gpufair("queue", "--json").stdout)["reservations"]
    assert same["run"] == run_id(3)


def test_what_borrows_is_kept_once_it_has_waited(queue: Filling, gpufair: Gpufair) -> None:
    queue.run(asked(1, 4, ago=60, team="vision", max_duration=2 * HOUR), ago=60)
    queue.run(asked(2, 8, ago=60), ago=60)
    queue.submit(asked(3, 8, ago=50, team="speech"), asked(4, 2, ago=40, team="speech"))
    result = gpufair("queue")
    assert why(result, "00000004") == "lower_priority: reserved for 00000003"
    assert why(result, "00000003").startswith(
        "insufficient_gpus: the most free on one node is 4 (4 of 16 in all)"
    )


def test_smaller_or_elsewhere(queue: Filling, gpufair: Gpufair) -> None:
    queue.adopt(POLICY.replace("t4: {gpus: 4}", "t4: {gpus: 4}\n  a100: {nodes: {a1: 8}}"))
    queue.run(asked(1, 8, ago=9), asked(2, 5, ago=9, team="vision"), ago=9)
    queue.submit(asked(3, 6, ago=5, team="vision"))
    result = gpufair("explain", "00000003")
    assert helps(result) == [
        ["gpufair/gpus:", "3", "on", "3", "h100"],
        ["gpufair/pool:", "h100,a100", "on", "6", "a100"],
    ]


def test_more_important(queue: Filling, gpufair: Gpufair) -> None:
    queue.adopt(POLICY.replace("{t4: 1}}", "{t4: 1}, tiers: [critical, standard]}"))
    queue.run(asked(1, 8, ago=9), asked(2, 4, ago=9, team="vision"), ago=9)
    queue.submit(asked(3, 8, ago=8), asked(4, 4, ago=7, team="vision"))
    queue.submit(asked(5, 4, ago=5, team="speech"))
    assert ["gpufair/tier:", "critical", "on", "4", "h100"] in helps(gpufair("explain", "00000005"))


def test_nothing_would_help(queue: Filling, gpufair: Gpufair) -> None:
    queue.run(asked(1, 8, ago=9), asked(2, 8, ago=9, team="vision"), ago=9)
    queue.run(asked(3, 3, ago=9, pools=("t4",), team="vision"), ago=9)
    queue.submit(asked(4, 1, pools=("t4",), team="vision"))
    assert (
        "No single change of its tags would start it now." in gpufair("explain", run_id(4)).stdout
    )
    assert json.loads(gpufair("explain", run_id(4), "--json").stdout)["remedies"] == []


def test_what_something_outside_blocks_is_helped_by_no_tag(
    queue: Filling, gpufair: Gpufair
) -> None:
    queue.submit(asked(1, 8))
    with queue.ledger.writing() as session:
        requests.block(session, {run_id(1): ("run_limit", "This instance runs 2 runs at once.")})
    said = gpufair("explain", "00000001").stdout
    assert "would start" not in said
    assert (
        "It starts once fewer runs are in progress, or with a higher limit in dagster.yaml." in said
    )
    assert json.loads(gpufair("explain", "00000001", "--json").stdout)["remedies"] == []


@pytest.fixture
def usual(queue: Filling) -> Filling:
    """A job that usually takes an hour holds eight GPUs since 20 minutes; others wait for four."""
    queue.usually_lasts("train", of_minutes=60)
    queue.run(asked(1, 8, ago=20), ago=20)
    queue.run(asked(2, 8, ago=20, team="speech", job_name="other", max_duration=2 * HOUR), ago=20)
    queue.submit(asked(3, 4, ago=5, team="vision"))
    return queue


def test_about_when_and_at_the_latest(usual: Filling, gpufair: Gpufair) -> None:
    about, latest = time_of_day(-40), time_of_day(-100)
    assert f"about {about}" in row(gpufair("queue"), "00000003")
    assert (
        f"It starts about {about}, if running jobs take as long as they usually do and no "
        f"higher-priority run arrives; by {latest} at the latest, if running jobs use their full "
        "max_duration."
    ) in gpufair("explain", "00000003").stdout
    said = json.loads(gpufair("explain", "00000003", "--json").stdout)["waiting"]
    assert said["submitted"] < said["about"] < said["at_the_latest"]


def test_when_the_others_end(usual: Filling, gpufair: Gpufair) -> None:
    lines = [line.split() for line in gpufair("explain", "00000003").stdout.splitlines()]
    ends = {
        words[0]: " ".join(words[5:8]) for words in lines if words[1:2] in (["nlp"], ["speech"])
    }
    assert ends == {
        "00000001": f"about {time_of_day(-40)}",
        "00000002": f"by {time_of_day(-100)}",
    }
    holding = json.loads(gpufair("explain", "00000003", "--json").stdout)["holding"]
    assert [(one["about"] is None, one["at_the_latest"] is None) for one in holding] == [
        (True, False),
        (False, True),
    ]


def test_others_are_stopped_for_it(queue: Filling, gpufair: Gpufair) -> None:
    queue.adopt(f"{POLICY}preemption: {{mode: auto}}\n")
    queue.run(asked(1, 8, ago=90, team="vision"), asked(2, 8, ago=90, team="speech"), ago=90)
    queue.submit(asked(3, 8, ago=5), asked(4, 1, ago=4, team="speech"))
    assert why(gpufair("queue"), "00000003").startswith("preempting: ")
    said = gpufair("explain", "00000003").stdout
    assert "8 are promised to this run, which starts when 00000002" in said.replace("\n", " ")
    data = json.loads(gpufair("explain", "00000003", "--json").stdout)
    assert [(one["what"], one["run"]) for one in data["blockers"]] == [("lease", run_id(2))]


def test_its_quota_is_used_up(queue: Filling, gpufair: Gpufair) -> None:
    queue.adopt(f"{POLICY}borrowing: {{mode: off}}\n")
    queue.run(asked(1, 8, ago=9), ago=9)
    queue.submit(asked(2, 2, ago=5))
    assert why(gpufair("queue"), "00000002") == (
        "quota_exhausted: nlp uses 8 of its quota of 8, and borrowing is off"
    )
    said = gpufair("explain", "00000002").stdout
    assert "What nlp runs in h100:" in said
    assert (
        "To run more at once, the team needs a larger quota, a grant, or permission to borrow"
        in said
    )
    (blocker,) = json.loads(gpufair("explain", "00000002", "--json").stdout)["blockers"]
    assert (blocker["what"], blocker["team"], blocker["in_use"]) == ("account", "nlp", 8)


def test_it_has_borrowed_what_it_may(queue: Filling, gpufair: Gpufair) -> None:
    queue.run(asked(1, 8, ago=9), asked(2, 4, ago=9), ago=9)
    queue.submit(asked(3, 2, ago=5))
    assert why(gpufair("queue"), "00000003") == (
        "borrow_limit: nlp has reached its borrow limit: it uses its quota of 8 and 4 of 4 borrowed"
    )
    assert "What nlp runs in h100:" in gpufair("explain", "00000003").stdout


def test_others_do_not_lend(queue: Filling, gpufair: Gpufair) -> None:
    queue.run(asked(1, 3, team="vision", pools=("t4",), ago=9), ago=9)
    queue.submit(asked(2, 1, team="vision", pools=("t4",), ago=5))
    assert why(gpufair("queue"), "00000002") == "reserve_held: 1 GPU is held back for speech"
    assert gpufair("explain", "00000002").stdout.splitlines()[-1] == (
        "It starts once runs end; a run that names one more pool (gpufair/pool: t4,h100) may start "
        "sooner: `gpufair pools` shows what is held back."
    )


def test_its_team_declares_all_it_may(queue: Filling, gpufair: Gpufair) -> None:
    queue.adopt(POLICY.replace("vision: {", "vision: {ceilings: {cpus: 64}, "))
    queue.run(asked(1, 2, ago=9, team="vision", cpus=48.0), ago=9)
    queue.run(asked(2, 2, ago=9, team="vision", pools=("t4",), cpus=8.0), ago=9)
    queue.submit(asked(3, 1, ago=5, team="vision", cpus=16.0))
    assert why(gpufair("queue"), "00000003") == (
        "ceiling: vision has a ceiling of 64 CPUs: its runs use 56, and this run needs 16"
    )
    said = gpufair("explain", "00000003").stdout
    assert "What vision runs:" in said, "in all pools"
    assert {"00000001", "00000002"} <= set(said.split())
    assert ["gpufair/cpus:", "8", "on", "1", "h100"] in helps(gpufair("explain", "00000003"))
    assert "a run that declares less (gpufair/cpus) may start sooner" in said
    assert " It fits by " not in said


def test_its_team_has_nothing_left_to_declare(queue: Filling, gpufair: Gpufair) -> None:
    """A tag has no 0: it would start without it."""
    queue.adopt(POLICY.replace("vision: {", "vision: {ceilings: {cpus: 64}, "))
    queue.run(asked(1, 2, ago=9, team="vision", cpus=64.0), ago=9)
    queue.submit(asked(2, 1, ago=5, team="vision", cpus=16.0))
    result = gpufair("explain", "00000002")
    assert helps(result) == [["gpufair/cpus:", "left", "out", "on", "1", "h100"]]
    (remedy,) = json.loads(gpufair("explain", "00000002", "--json").stdout)["remedies"]
    assert (remedy["tag"], remedy["value"]) == ("gpufair/cpus", None)


def test_nodes_are_in_maintenance(queue: Filling, gpufair: Gpufair) -> None:
    queue.cordon("h100", "h1", "ECC errors")
    queue.cordon("h100", "h2")
    queue.submit(asked(1, 8, ago=5))
    result = gpufair("queue")
    assert why(result, "00000001") == "maintenance: the GPUs it needs are on h1, h2, in maintenance"
    assert "h100 · 16 GPUs (16 in maintenance) · none in use · none free" in result.stdout
    said = gpufair("explain", "00000001").stdout
    assert "`gpufair pools` shows who took which node into maintenance, and why." in said


def test_it_is_in_the_fast_lane(queue: Filling, gpufair: Gpufair) -> None:
    queue.adopt(f"{POLICY}fast_lane: {{t4: {{gpus: 1, max_gpus: 1, max_duration: 30m}}}}\n")
    queue.run(asked(1, 2, ago=9, team="vision", pools=("t4",)), ago=9)
    queue.submit(asked(2, 2, ago=5, team="speech", pools=("t4",)))
    assert why(gpufair("queue"), "00000002") == (
        "lower_priority: the free GPUs are in the fast lane, for smaller and shorter runs"
    )


def test_it_is_kept_for_a_window_to_come(queue: Filling, gpufair: Gpufair) -> None:
    times = f"from: {utc(-120)}, until: {utc(-180)}"
    queue.adopt(f"{POLICY}windows: [{{team: speech, pool: h100, gpus: 12, {times}}}]\n")
    queue.run(asked(1, 4, ago=9), ago=9)
    queue.submit(asked(2, 4, ago=5, team="vision"))
    result = gpufair("queue")
    assert why(result, "00000002") == (
        f"lower_priority: reserved for a window of speech from {time_of_day(-120)}"
    )
    assert (
        "12 are reserved for a window of speech that begins in "
        in gpufair("explain", "00000002").stdout
    )


def test_its_team_covers_it_and_not_its_own_account(queue: Filling, gpufair: Gpufair) -> None:
    queue.adopt(WITH_A_PROJECT)
    queue.run(asked(1, 8, ago=9, team="vision"), asked(2, 8, ago=9, team="speech"), ago=9)
    queue.submit(asked(3, 8, ago=5), asked(4, 4, ago=4, project="pretrain"))
    result = gpufair("explain", "00000003")
    assert "why 00000004 comes first" in result.stdout
    words = [line.split() for line in result.stdout.splitlines()]
    assert ["class", "guaranteed", "guaranteed", "by", "its", "team"] in [row[:6] for row in words]
    assert "then guaranteed by its team, then borrowing." in result.stdout
    assert "points as guaranteed by its team):" in result.stdout


def test_projects_of_one_team_that_both_borrow(queue: Filling, gpufair: Gpufair) -> None:
    queue.adopt(WITH_A_PROJECT.replace("borrow_limit: {h100: 4}, ", ""))
    queue.run(asked(1, 8, ago=9), asked(2, 8, ago=9, team="vision"), ago=9)
    queue.submit(asked(3, 4, ago=50), asked(4, 5, ago=4, project="pretrain"))
    result = gpufair("explain", "00000003")
    assert "why 00000004 comes first" in result.stdout
    assert "Both borrow for one team: the project that has borrowed less" in result.stdout
    inside = next(line.split() for line in result.stdout.splitlines() if "inside" in line)
    assert float(inside[1]) < float(inside[2])


def test_a_pool_and_a_team_that_are_no_more_are_told_in_full(
    queue: Filling, gpufair: Gpufair
) -> None:
    queue.submit(asked(1, 2, pools=("a100",)))
    said = why(gpufair("queue"), "00000001")
    assert said.startswith("environment: needs 2 ")
    assert "pool a100 is not in the policy" in said
