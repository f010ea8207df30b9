"""What a person reads in ``gpufair pools`` and ``gpufair teams``."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import datetime

from cli_samples import POLICY, WITH_A_PROJECT, Filling, asked, run_id, time_of_day, utc
from click.testing import Result

from dagster_gpufair.ledger import usage
from dagster_gpufair.policy.quantities import format_moment
from dagster_gpufair.scheduling.model import Account

Gpufair = Callable[..., Result]


def line(result: Result, *begins: str) -> list[str]:
    """The words of the line that begins with these."""
    lines = [line.split() for line in result.stdout.splitlines()]
    return next(words for words in lines if words[: len(begins)] == list(begins))


def in_utc(ago: float) -> str:
    """A moment as `gpufair policy show` has it."""
    return format_moment(datetime.fromisoformat(utc(ago)))


def test_pools_and_their_nodes(queue: Filling, gpufair: Gpufair) -> None:
    queue.run(asked(1, 8, ago=9, team="vision"), ago=9)
    queue.run(asked(2, 3.5, ago=8), ago=8)
    queue.run(asked(3, 1, team="speech", pools=("t4",)))
    queue.submit(asked(4, 8))
    result = gpufair("pools")
    assert result.stdout.startswith("policy v1, ")
    h100 = line(result, "h100")
    assert h100[1:7] == ["16", "11.5", "4", "4.5", "0", "1"]
    assert " ".join(h100[7:]) == "h1 0 of 8, h2 4.5 of 8"
    t4 = line(result, "t4")
    assert t4[1:7] == ["4", "1", "0", "3", "0", "0"]
    assert " ".join(t4[7:]) == "any, it has no nodes"
    assert "`gpufair queue` shows what waits" in result.stdout
    pool = json.loads(gpufair("pools", "--json").stdout)["pools"][0]
    assert pool == {
        "pool": "h100",
        "gpus": 16,
        "ready": 16,
        "in_use": 11.5,
        "borrowed": 4,
        "held_back": 0,
        "promised": 0,
        "free": 4.5,
        "waiting": 1,
        "lane": None,
        "nodes": {
            "h1": {"gpus": 8, "used": 8, "free": 0, "cordoned": None},
            "h2": {"gpus": 8, "used": 3.5, "free": 4.5, "cordoned": None},
        },
        "reservations": [],
        "counts_in": [],
    }


def test_a_pool_of_many_nodes_names_the_emptiest(queue: Filling, gpufair: Gpufair) -> None:
    nodes = ", ".join(f"n{number:03}: 8" for number in range(40))
    queue.adopt(f"pools: {{big: {{nodes: {{{nodes}}}}}}}\nteams: {{nlp: {{quota: {{big: 320}}}}}}")
    queue.run(*(asked(number, 8, pools=("big",)) for number in range(20)))
    words = " ".join(line(gpufair("pools"), "big"))
    assert "n020 8 of 8, n021 8 of 8" in words
    assert words.endswith(", and 28 more (--json has all)")
    assert len(json.loads(gpufair("pools", "--json").stdout)["pools"][0]["nodes"]) == 40


def test_a_pool_that_shrank_or_went_away(queue: Filling, gpufair: Gpufair) -> None:
    queue.run(asked(1, 8), asked(2, 8, team="vision"))
    queue.run(asked(3, 3, team="vision", pools=("t4",)))
    queue.adopt("pools: {h100: {nodes: {h1: 4}}}\nteams: {nlp: {quota: {h100: 4}}}")
    result = gpufair("pools")
    assert line(result, "h100")[1:6] == ["4", "16", "12", "0", "0"]
    assert " ".join(line(result, "t4")) == "t4 0 3 3 0 0 0 not in the policy"
    assert " ".join(line(gpufair("teams"), "vision", "t4")) == "vision t4 0 3 3 0 0 0 0 % 0 % 0 1"


def test_teams(queue: Filling, gpufair: Gpufair) -> None:
    queue.run(asked(1, 8, ago=9, team="vision"), asked(2, 3.5, ago=9), ago=9)
    queue.submit(asked(3, 8), asked(4, 8))
    with queue.ledger.writing() as session:
        usage.accrue(session, {(Account("vision"), "h100"): 4000}, 0.0, time.time(), 3600.0)
        usage.accrue(session, {(Account("nlp"), "h100"): 1000}, 0.0, time.time(), 3600.0)
    result = gpufair("teams")
    assert " ".join(line(result, "nlp", "h100")) == "nlp h100 8 3.5 0 4 0 8 20 % 33 % 2 1"
    assert " ".join(line(result, "vision", "h100")) == "vision h100 4 8 4 any 0 4 80 % 33 % 0 1"
    assert " ".join(line(result, "speech", "t4")) == "speech t4 2 0 0 any 0 1 0 % 33 % 0 0"
    assert "recent borrowing: its share of recently borrowed GPU-hours" in result.stdout
    assert "(half-life 7 days)" in result.stdout
    teams = json.loads(gpufair("teams", "--json").stdout)["teams"]
    assert len(teams) == 6, "every team in every pool"
    assert teams[2] == {
        "team": "vision",
        "pool": "h100",
        "quota": 4,
        "in_use": 8,
        "borrowed": 4,
        "may_borrow": None,
        "lends": 0,
        "may_lend": 4,
        "borrowed_share": 0.8,
        "weight_share": 0.3333,
        "waiting": 0,
        "running": 1,
        "projects": [],
    }


def test_a_team_without_anything_is_still_named(queue: Filling, gpufair: Gpufair) -> None:
    queue.adopt("pools: {h100: {gpus: 8}}\nteams: {nlp: {quota: {h100: 8}}, new: {}}")
    assert line(gpufair("teams"), "new")[:3] == ["new", "-", "0"]


def test_nobody_borrows_where_borrowing_is_off(queue: Filling, gpufair: Gpufair) -> None:
    queue.adopt(
        "pools: {h100: {gpus: 8}}\nteams: {nlp: {quota: {h100: 8}}}\nborrowing: {mode: off}"
    )
    assert " ".join(line(gpufair("teams"), "nlp")) == "nlp h100 8 0 0 0 0 0 0 % 100 % 0 0"


def test_what_is_reserved_and_for_whom(queue: Filling, gpufair: Gpufair) -> None:
    queue.adopt(f"{POLICY}fast_lane: {{t4: {{gpus: 2, max_gpus: 1, max_duration: 30m}}}}\n")
    queue.run(asked(1, 4, ago=60, team="vision", max_duration=7200.0), ago=60)
    queue.run(asked(2, 8, ago=60, team="speech"), ago=60)
    queue.run(asked(3, 1, ago=5, team="speech", pools=("t4",), max_duration=600.0), ago=5)
    queue.submit(asked(4, 8, ago=30))
    lines = gpufair("pools").stdout.splitlines()
    at = lines.index("reserved")
    assert lines[at + 1 : at + 3] == [
        "  for 00000004 (nlp, standard, 8 GPUs): 8 h100 on h1 from "
        + time_of_day(-60)
        + " at the latest",
        "  in the fast lane of t4: 1 of 2 free, for runs of at most 1 GPU and 30 min",
    ]
    h100, t4 = json.loads(gpufair("pools", "--json").stdout)["pools"]
    assert [one["run"] for one in h100["reservations"]] == [run_id(4)]
    assert t4["lane"] == {"gpus": 2, "free": 1, "max_gpus": 1, "max_duration_seconds": 1800.0}


def test_grants_and_windows_now_and_next(queue: Filling, gpufair: Gpufair) -> None:
    grant = (
        f"{{team: vision, pool: h100, gpus: 2, from: {utc(60)}, until: {utc(-60)}, "
        "approved_by: ana, reason: paper deadline}"
    )
    over = grant.replace(utc(-60), utc(30)).replace("paper", "another")
    now = f"{{team: speech, pool: t4, gpus: 1, from: {utc(60)}, until: {utc(-30)}}}"
    later = f"{{team: nlp, pool: h100, gpus: 2, from: {utc(-90)}, until: {utc(-120)}}}"
    queue.adopt(f"{POLICY}grants: [{grant}, {over}]\nwindows: [{later}, {now}]\n")
    lines = gpufair("pools").stdout.splitlines()
    at = lines.index("in force")
    assert lines[at + 1 : at + 6] == [
        f"  grant of 2 h100 for vision until {in_utc(-60)} (approved by ana: paper deadline)",
        f"  window of 1 t4 for speech until {in_utc(-30)}",
        "",
        "next",
        f"  window of 2 h100 for nlp from {in_utc(-90)} until {in_utc(-120)}",
    ]
    extras = json.loads(gpufair("pools", "--json").stdout)["grants_and_windows"]
    assert [(one["kind"], one["team"], one["in_force"]) for one in extras] == [
        ("grant", "vision", True),
        ("window", "speech", True),
        ("window", "nlp", False),
    ]
    teams = gpufair("teams")
    assert line(teams, "vision", "h100")[2] == "6", "the quota is with the grant"
    assert " ".join(line(teams, "speech", "t4")[2:7]) == "3 0 0 any 0", "a window is not lent"
    assert line(teams, "speech", "t4")[7] == "1"


def test_projects_under_their_team(queue: Filling, gpufair: Gpufair) -> None:
    queue.adopt(WITH_A_PROJECT)
    queue.run(asked(1, 5, ago=9, project="pretrain"), asked(2, 1, ago=9, project="other"), ago=9)
    result = gpufair("teams")
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    at = lines.index("nlp h100 8 6 0 4 0 8 0 % 33 % 0 2")
    assert lines[at + 1 : at + 3] == ["nlp/pretrain h100 4 5 1 any", "nlp/(rest) h100 4 1 0 any"]
    assert "of a project, over its own." in result.stdout
    team = json.loads(gpufair("teams", "--json").stdout)["teams"][0]
    assert team["projects"] == [
        {"project": "pretrain", "quota": 4, "in_use": 5, "borrowed": 1, "may_borrow": None},
        {"project": None, "quota": 4, "in_use": 1, "borrowed": 0, "may_borrow": None},
    ]


def test_what_projects_keep_is_not_lent(queue: Filling, gpufair: Gpufair) -> None:
    queue.adopt(WITH_A_PROJECT.replace("{h100: 4}}}", "{h100: 4}, lend_limit: {h100: 1}}}"))
    assert line(gpufair("teams"), "nlp", "h100")[7] == "5"


def test_what_is_lent_in_parts_of_a_gpu(queue: Filling, gpufair: Gpufair) -> None:
    queue.adopt(POLICY.replace("quota: {h100: 4", "quota: {h100: 8"))
    queue.run(asked(1, 0.555, ago=9, team="speech"), ago=9)
    queue.run(asked(2, 5, ago=8, team="speech"), ago=8)
    lent = [line(gpufair("teams"), team, "h100")[6] for team in ("nlp", "vision")]
    assert lent == ["2.78", "2.78"]


def test_what_is_lent_now(queue: Filling, gpufair: Gpufair) -> None:
    """Of the 16, 4 are in no quota: whoever borrows has those first."""
    queue.run(asked(1, 4, ago=9, team="speech"), ago=9)
    assert [line(gpufair("teams"), team, "h100")[6] for team in ("nlp", "vision")] == ["0", "0"]
    queue.run(asked(2, 6, ago=8, team="speech"), ago=8)
    assert [line(gpufair("teams"), team, "h100")[6] for team in ("nlp", "vision")] == ["4", "2"]
    queue.run(asked(3, 4, ago=7, team="vision"), asked(4, 2, ago=7, team="vision"), ago=7)
    teams = json.loads(gpufair("teams", "--json").stdout)["teams"]
    lends = {each["team"]: each["lends"] for each in teams if each["pool"] == "h100"}
    assert lends == {"nlp": 8, "vision": 0, "speech": 0}, "who borrows has nothing to lend"


def test_ceilings(queue: Filling, gpufair: Gpufair) -> None:
    queue.adopt(
        POLICY.replace("h2: 8}", "h2: 8}, gpu_memory_gib: 80").replace(
            "vision: {", "vision: {ceilings: {cpus: 64, memory_gib: 512, gpu_memory_gib: 640}, "
        )
    )
    queue.run(asked(1, 2, ago=9, team="vision", cpus=16.5, memory_gib=100.0), ago=9)
    queue.run(asked(2, 1, ago=9, team="vision", pools=("t4",), cpus=8.0), ago=9)
    result = gpufair("teams")
    assert line(result, "vision", "cpus") == ["vision", "cpus", "24.5", "64"]
    assert line(result, "vision", "memory_gib") == ["vision", "memory_gib", "100", "512"]
    assert line(result, "vision", "gpu_memory_gib") == ["vision", "gpu_memory_gib", "160", "640"]
    ceilings = json.loads(gpufair("teams", "--json").stdout)["ceilings"]
    assert ceilings[0] == {"team": "vision", "what": "cpus", "used": 24.5, "most": 64}
