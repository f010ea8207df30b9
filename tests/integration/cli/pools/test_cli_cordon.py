"""Nodes that a person takes into maintenance, and puts back."""

from __future__ import annotations

import json
from collections.abc import Callable

from cli_samples import Filling, asked, run_id, time_of_day
from click.testing import Result

from dagster_gpufair.ledger import events, nodes

Gpufair = Callable[..., Result]


def test_a_node_takes_nothing_new_and_what_runs_there_goes_on(
    queue: Filling, gpufair: Gpufair
) -> None:
    queue.run(asked(1, 4, ago=60, max_duration=7200.0), asked(2, 2, ago=60, team="vision"), ago=60)
    said = gpufair("cordon", "h100", "h1", "--reason", "ECC errors").stdout
    assert said == (
        "h100 h1 accepts no new runs from now on: ECC errors.\n"
        "2 runs on it go on:\n"
        f"  00000001 (nlp, standard, 4 GPUs), until {time_of_day(-60)} at the latest\n"
        "  00000002 (vision, standard, 2 GPUs)\n"
        "`gpufair uncordon h100 h1` puts it back.\n"
    )
    queue.submit(asked(3, 2), asked(4, 8))
    queue.decide()
    pools = gpufair("pools").stdout
    assert "h1 in maintenance (6 in use), h2 6 of 8" in pools, "what starts now starts elsewhere"
    assert "\nin maintenance\n  h100 h1, since " in pools
    assert ": ECC errors; 2 runs are still on it (00000001, 00000002)\n" in pools
    node = json.loads(gpufair("pools", "--json").stdout)["pools"][0]["nodes"]["h1"]
    assert (node["gpus"], node["used"], node["free"]) == (8, 6, 0)
    assert (node["cordoned"]["reason"], node["cordoned"]["node"]) == ("ECC errors", "h1")


def test_to_cordon_it_again_changes_nothing(queue: Filling, gpufair: Gpufair) -> None:
    queue.cordon("h100", "h1", "ECC errors", ago=20)
    said = gpufair("cordon", "h100", "h1", "--reason", "another").stdout
    assert said.startswith(
        f"h100 h1 is in maintenance already, since {time_of_day(20)} by ana on ops1; nothing changed.\n"
        "No run is on it.\n"
    )
    with queue.ledger.reading() as session:
        (there,) = nodes.cordoned(session)
        assert [event.kind for event in events.since(session, 0)][-1] == "cordoned"
    assert there.reason == "ECC errors"


def test_it_is_put_back(queue: Filling, gpufair: Gpufair) -> None:
    queue.cordon("h100", "h1")
    assert "since " in gpufair("pools").stdout
    assert gpufair("uncordon", "h100", "h1").stdout == (
        "h100 h1 accepts new runs again, from the daemon's next pass on.\n"
    )
    assert "maintenance" not in gpufair("pools").stdout
    again = gpufair("uncordon", "h100", "h1").stdout
    assert again == "h100 h1 is not in maintenance; nothing changed.\n"
    with queue.ledger.reading() as session:
        said = [event for event in events.since(session, 0) if event.kind == "uncordoned"]
    assert len(said) == 1
    assert " on " in said[0].data["by"]


def test_a_node_that_the_policy_has_lost_since(queue: Filling, gpufair: Gpufair) -> None:
    queue.cordon("a100", "a1")
    assert "a100 a1, since " in gpufair("pools").stdout
    assert "; it is not in the policy any more" in gpufair("pools").stdout
    assert "accepts new runs again" in gpufair("uncordon", "a100", "a1").stdout


def test_names_that_are_not_there(queue: Filling, gpufair: Gpufair) -> None:
    for command in ("cordon", "uncordon"):
        said = gpufair(command, "h10", "h1", code=1).stderr
        assert "unknown pool 'h10'; did you mean 'h100'? (known: h100, t4)." in said
        said = gpufair(command, "h100", "h11", code=1).stderr
        assert "unknown node of pool h100 'h11'; did you mean 'h1'? (known: h1, h2)." in said
        said = gpufair(command, "t4", "x", code=1).stderr
        assert "Pool t4 has no nodes in the policy, just a number of GPUs." in said
    with queue.ledger.reading() as session:
        assert nodes.cordoned(session) == []


def test_the_same_for_programs(queue: Filling, gpufair: Gpufair) -> None:
    queue.run(asked(1, 4, ago=60), ago=60)
    said = json.loads(gpufair("cordon", "h100", "h1", "--json").stdout)
    assert (said["pool"], said["node"], said["new"], said["reason"]) == ("h100", "h1", True, None)
    assert [one["run"] for one in said["runs"]] == [run_id(1)]
    assert json.loads(gpufair("cordon", "h100", "h1", "--json").stdout)["new"] is False
    assert json.loads(gpufair("uncordon", "h100", "h1", "--json").stdout) == {
        "schema": 1,
        "pool": "h100",
        "node": "h1",
        "new": True,
    }
    assert json.loads(gpufair("pools", "--json").stdout)["cordoned"] == []


def test_a_reason_acts_on_no_terminal(queue: Filling, gpufair: Gpufair) -> None:
    gpufair("cordon", "h100", "h1", "--reason", "\x1b[31mred\nline")
    assert "\\x1b[31mred\\nline" in gpufair("pools").stdout
