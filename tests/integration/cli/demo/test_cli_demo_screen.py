"""What the demo prints where it is no terminal: what happens, and why runs wait, when that changes."""

from __future__ import annotations

import time

import pytest
from cli_samples import POLICY, Filling, asked
from dagster import DagsterInstance

from dagster_gpufair.cli.demo.screen import Screen
from dagster_gpufair.cli.demo.watch import Sight
from dagster_gpufair.cli.moment.current import read_moment


def test_why_runs_wait_is_told_once_for_each_reason(
    queue: Filling, instance: DagsterInstance, capsys: pytest.CaptureFixture[str]
) -> None:
    def told() -> list[str]:
        """What is printed of a look, without the time of day."""
        with queue.ledger.reading() as session:
            moment = read_moment(instance, session, time.time())
        screen.show(Sight(moment, {}, {}, expected=5, news=()))
        return [line.split("  ", 1)[1] for line in capsys.readouterr().out.splitlines()]

    screen = Screen(footer="")
    assert told() == []
    queue.run(asked(1, 8, ago=9), asked(2, 5, ago=9, team="vision"), ago=9)
    queue.submit(*(asked(number, 4, ago=5, team="vision") for number in (3, 4)))
    queue.submit(asked(5, 5, ago=4))
    waiting = "the most free on one node is 3 (3 of 16 in all)"
    limit = "nlp uses 8 of its quota of 8, and may borrow 4 in all"
    assert told() == [
        f"00000005 waits: borrow_limit: {limit}",
        f"2 runs wait: insufficient_gpus: {waiting}",
    ]
    assert told() == [], "nothing has changed"
    queue.submit(asked(6, 6, ago=3, team="vision"))
    assert told() == [f"00000006 waits: insufficient_gpus: {waiting}"]
    queue.adopt(POLICY.replace("borrow_limit: {h100: 4}, ", ""))
    assert told() == [f"00000005 waits: insufficient_gpus: {waiting}"], "now for another reason"
