"""What a waiting run's page says: the reason, the place, and what the policy would stop for it."""

from __future__ import annotations

import time
from datetime import datetime, timezone

import pytest

from dagster_gpufair.engine.would_stop import Remark
from dagster_gpufair.gate.page.run_page import Word, granted_word
from dagster_gpufair.gate.page.waiting_line import WaitingLine
from dagster_gpufair.gate.submission.tags import LONGEST_WHY
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


def words(remarks: dict[str, Remark], trouble: str | None = None, now: float = NOW) -> list[Word]:
    """All that there is to say of two runs that wait."""
    requests = [asks("run-1", gpus=2), asks("run-2", gpus=4)]
    line = WaitingLine(plan(POLICY, State(requests, [HELD]), NOW), {}, trouble, 1, remarks=remarks)
    return [line.word(*said, now) for said in line.reasons()]


def test_a_remark_is_said_of_its_run_only() -> None:
    first, second = words({"run-1": Remark("It would stop held.", "Would stop held.")})

    assert first.tag == "insufficient_gpus · 1st in a100"
    assert " Would stop held. (" in first.why
    assert first.sentence is not None
    assert "It would stop held. `gpufair explain run-1` says more." in first.sentence
    assert "stop" not in f"{second.why} {second.sentence}"


def test_a_new_remark_is_news_and_so_is_a_broken_file() -> None:
    remark = {"run-1": Remark("It would stop held.", "Would stop held.")}

    reasons = {words({})[0].reason, words(remark)[0].reason, words(remark, "broken")[0].reason}
    assert len(reasons) == 3
    assert words(remark, "broken")[0].tag == "insufficient_gpus · 1st in a100 · policy file broken"


def test_the_tag_says_as_of_when_it_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """It stays when what it says is to come within minutes has long been."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    noon = datetime(2026, 6, 1, 12, 7, tzinfo=timezone.utc).timestamp()
    first, _ = words({}, now=noon)
    monkeypatch.undo()
    time.tzset()
    assert first.why.startswith("needs 2 a100 on one node; "), "the cause comes first"
    assert first.why.endswith(" (2026-06-01 12:07 UTC)")
    assert first.sentence is not None
    assert "12:07" not in first.sentence, "an event has a time of its own"


@pytest.mark.parametrize("length", [10, 140, 1000])
def test_the_tag_has_room_for_a_remark(length: int) -> None:
    remark = Remark("It would stop held.", "x" * length)

    first, _ = words({"run-1": remark})
    assert len(first.why) <= LONGEST_WHY
    assert first.why.startswith("needs 2 a100")
    assert "x" * min(length, 139) in first.why
    assert first.why.endswith(")")


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

    word = granted_word(start, POLICY, NOW)
    assert word.why == says
    assert word.reason == start.class_.label
    assert f"on n1, {says}, with " in (word.sentence or "")
