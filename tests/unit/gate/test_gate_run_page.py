"""What runs' pages say: why they wait, on whose quota they run, who is stopped for whom and what is lost."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import datetime, timezone

import pytest
from lease_samples import lease

from dagster_gpufair.gate.page.run_page import (
    Word,
    granted_word,
    notice_word,
    preempted_word,
)
from dagster_gpufair.gate.page.waiting_line import WaitingLine
from dagster_gpufair.ledger.requests import RequestRecord
from dagster_gpufair.policy.loading import parse_policy
from dagster_gpufair.scheduling.model import Lease, Request, State
from dagster_gpufair.scheduling.plan import plan

NOW = 1_000_000.0
POLICY = parse_policy("""
pools: {a100: {nodes: {n1: 8}}}
teams:
  red: {quota: {a100: 6}, projects: {pretrain: {quota: {a100: 4}}}}
  blue: {quota: {a100: 2}, tiers: [critical, standard]}
""")
HELD = Lease("held", "blue", "standard", "a100", 8000, NOW - 60, {"n1": 8000})


def asks(id_: str = "run-1", team: str = "red", gpus: int = 4, **more: str) -> Request:
    values = {"tier": "standard", **more}
    return Request(id_, team, pools=("a100",), gpus=gpus * 1000, submitted=NOW - 60, **values)


def words(trouble: str | None = None, now: float = NOW) -> list[Word]:
    """All that there is to say of two runs that wait; the first goes on with what was stopped."""
    requests = [asks("run-1", gpus=2), asks("run-2", gpus=4)]
    runs = {"run-1": "run-1b", "run-2": "run-2"}
    line = WaitingLine(plan(POLICY, State(requests, [HELD]), NOW), {}, runs.__getitem__, trouble, 1)
    return [line.word(*said, now) for said in line.reasons()]


def test_it_is_said_of_the_run_that_a_request_is_for_now() -> None:
    first, second = words()
    assert (first.run_id, second.run_id) == ("run-1b", "run-2")
    assert first.tag == "insufficient_gpus · 1st in a100"
    assert first.sentence is not None
    assert first.sentence.endswith("`gpufair explain run-1b` says more.")


def test_a_broken_file_is_news() -> None:
    assert words()[0].reason != words("broken")[0].reason
    assert words("broken")[0].tag == "insufficient_gpus · 1st in a100 · policy file broken"


def test_the_tag_says_as_of_when_it_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """It stays when what it says is to come within minutes has long been."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    noon = datetime(2026, 6, 1, 12, 7, tzinfo=timezone.utc).timestamp()
    first, _ = words(now=noon)
    monkeypatch.undo()
    time.tzset()
    assert first.why.startswith("needs 2 a100 on one node; "), "the cause comes first"
    assert first.why.endswith(" (2026-06-01 12:07 UTC)")
    assert first.sentence is not None
    assert "12:07" not in first.sentence, "an event has a time of its own"


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        (asks(project="pretrain"), "within the quota of red/pretrain"),
        (asks(gpus=2), "within the quota of red"),
        (asks(gpus=3), "within the quota of red as a whole"),
        (asks(gpus=8), "borrowed: it is beyond the quota of red and nobody else uses it"),
        (asks(team="blue", gpus=2), "within the quota of blue"),
        (asks(team="blue", tier="critical"), "because tier 'critical' is urgent"),
    ],
)
def test_a_grant_says_on_whose_quota_it_is(request_: Request, says: str) -> None:
    (start,) = plan(POLICY, State([request_]), NOW).starts

    word = granted_word(lease(run_id=request_.id), start, POLICY, NOW)
    assert word.why == says
    assert word.reason == start.class_.label
    assert f"on n1, {says}, with " in (word.sentence or "")


NOTICED = lease(
    run_id="stopped-run",
    state="notice",
    notice_until=NOW + 60,
    notice_for="q",
    notice_rule="reclaim",
)
ASKER = RequestRecord(
    "q", "asks-for-it", "red", "milestone", ("t4",), 1000, NOW, project="pretrain"
)


def test_a_notice_says_until_when_for_whom_and_by_which_rule() -> None:
    word = notice_word(NOTICED, ASKER)
    assert word.run_id == "stopped-run"
    assert word.tag.startswith("stopped at ")
    assert word.why.startswith("asks-for (red/pretrain, milestone) takes back GPUs"), (
        "the cause first"
    )
    assert "Save" in (word.sentence or "")
    assert "(rule reclaim)" in (word.sentence or "")
    assert "another run" in notice_word(NOTICED, None).why, "who asked has left"


@pytest.mark.parametrize(
    ("saved_at", "says"),
    [
        (None, "2 GPU-hours of work are lost: it saved no checkpoint that is known of."),
        (3600.0, "1 GPU-hour of work is lost: its last checkpoint was at "),
    ],
)
def test_what_was_lost_is_told(saved_at: float | None, says: str) -> None:
    stopped = replace(NOTICED, checkpointed_at=saved_at)
    again = replace(ASKER, preempted=2, continues="stopped-run")
    word = preempted_word(stopped, again, ASKER, at=7200.0)
    assert "Stopped: asks-for (red/pretrain, milestone) takes back" in (word.sentence or "")
    assert says in (word.sentence or "")
    assert "stopped twice" in (word.sentence or "")
    assert word.state == "preempted"
