"""What a person reads in ``gpufair pools`` and ``gpufair teams``."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

from cli_samples import Filling, asked
from click.testing import Result

from dagster_gpufair.ledger import usage
from dagster_gpufair.scheduling.model import Account

Gpufair = Callable[..., Result]


def line(result: Result, *begins: str) -> list[str]:
    """The words of the line that begins with these."""
    lines = [line.split() for line in result.stdout.splitlines()]
    return next(words for words in lines if words[: len(begins)] == list(begins))


def test_pools_and_their_nodes(queue: Filling, gpufair: Gpufair) -> None:
    queue.run(asked(1, 8, ago=9, team="vision"), ago=9)
    queue.run(asked(2, 3.5, ago=8), ago=8)
    queue.run(asked(3, 1, team="speech", pools=("t4",)))
    queue.submit(asked(4, 8))
    result = gpufair("pools")
    assert result.stdout.startswith("policy v1, ")
    h100 = line(result, "h100")
    assert h100[1:7] == ["16", "11.5", "8", "4.5", "0", "1"]
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
        "borrowed": 8,
        "held_back": 0,
        "free": 4.5,
        "waiting": 1,
        "nodes": {
            "h1": {"gpus": 8, "used": 8, "free": 0, "ready": True},
            "h2": {"gpus": 8, "used": 3.5, "free": 4.5, "ready": True},
        },
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
    assert line(result, "h100")[1:6] == ["4", "16", "16", "0", "0"]
    assert " ".join(line(result, "t4")) == "t4 0 3 3 0 0 0 not in the policy"
    assert " ".join(line(gpufair("teams"), "vision", "t4")) == "vision t4 0 3 3 0 0 0 % 0 % 0 1"


def test_teams(queue: Filling, gpufair: Gpufair) -> None:
    queue.run(asked(1, 8, ago=9, team="vision"), asked(2, 3.5, ago=9), ago=9)
    queue.submit(asked(3, 8), asked(4, 8))
    with queue.ledger.writing() as session:
        usage.accrue(session, {(Account("vision"), "h100"): 4000}, 0.0, time.time(), 3600.0)
        usage.accrue(session, {(Account("nlp"), "h100"): 1000}, 0.0, time.time(), 3600.0)
    result = gpufair("teams")
    assert " ".join(line(result, "nlp", "h100")) == "nlp h100 8 3.5 0 4 8 20 % 33 % 2 1"
    assert " ".join(line(result, "vision", "h100")) == "vision h100 4 8 8 any 4 80 % 33 % 0 1"
    assert " ".join(line(result, "speech", "t4")) == "speech t4 2 0 0 any 1 0 % 33 % 0 0"
    assert "had of late: its part of all GPU-hours borrowed in the pool" in result.stdout
    assert "half forgotten after 7d" in result.stdout
    teams = json.loads(gpufair("teams", "--json").stdout)["teams"]
    assert len(teams) == 6, "every team in every pool"
    assert teams[2] == {
        "team": "vision",
        "pool": "h100",
        "quota": 4,
        "in_use": 8,
        "borrowed": 8,
        "may_borrow": None,
        "lends": 4,
        "borrowed_share": 0.8,
        "weight_share": 0.3333,
        "waiting": 0,
        "running": 1,
    }


def test_a_team_without_anything_is_still_named(queue: Filling, gpufair: Gpufair) -> None:
    queue.adopt("pools: {h100: {gpus: 8}}\nteams: {nlp: {quota: {h100: 8}}, new: {}}")
    assert line(gpufair("teams"), "new")[:3] == ["new", "-", "0"]


def test_nobody_borrows_where_borrowing_is_off(queue: Filling, gpufair: Gpufair) -> None:
    queue.adopt(
        "pools: {h100: {gpus: 8}}\nteams: {nlp: {quota: {h100: 8}}}\nborrowing: {mode: off}"
    )
    assert " ".join(line(gpufair("teams"), "nlp")) == "nlp h100 8 0 0 0 0 0 % 100 % 0 0"
