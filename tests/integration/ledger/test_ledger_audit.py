"""The audit: silent about a record that kept the rules, and precise about one that did not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ledger_samples import POLICY, asked, granted
from sqlalchemy import URL, delete, update
from sqlalchemy.orm import Session

from dagster_gpufair.ledger import audit, lifecycle, nodes, policies
from dagster_gpufair.ledger.connect import Ledger
from dagster_gpufair.ledger.tables import EventRow, LeaseRow
from dagster_gpufair.scheduling.model import Class

BORROWING = {"class_": Class.BORROWING}
VISION = {"team": "vision"}


@pytest.fixture
def url(tmp_path: Path) -> URL:
    """SQLite only: what the audit reads is tested on both, and it only reads."""
    return URL.create("sqlite", database=str(tmp_path / "gpufair.db"))


def adopt(session: Session, document: str = POLICY, at: float = 0.0) -> int:
    return policies.adopt(session, document, str(hash(document)), "test", "test", at)


def found(ledger: Ledger) -> list[str]:
    with ledger.reading() as session:
        return audit.violations(session)


def test_an_empty_record_is_clean(ledger: Ledger) -> None:
    assert found(ledger) == []


def test_a_record_that_kept_the_rules(ledger: Ledger) -> None:
    with ledger.writing() as session:
        adopt(session)
        first = granted(session, "a", 8, at=1000.0, node="h1")
        granted(session, "b", 4, at=1001.0, node="h2", **BORROWING)
        granted(session, "c", 4, at=1002.0, node="h2", **VISION)
        # In one pass: what ends at a moment is free at that moment.
        lifecycle.release(session, first, 1010.0, "success")
        granted(session, "d", 4, at=1010.0, node="h1")
        granted(session, "e", 4, at=1010.0, node="h1", **VISION)
        # Could not be launched, and the next one got its place in the same pass.
        failed = granted(session, "f", 4, at=1011.0, node=None, pool="t4", **BORROWING)
        lifecycle.recall(session, failed, 1011.0, "unreachable")
        granted(session, "g", 4, at=1011.0, node=None, pool="t4", **BORROWING)
    assert found(ledger) == []


def test_more_than_a_node_and_a_pool_have(ledger: Ledger) -> None:
    with ledger.writing() as session:
        adopt(session)
        granted(session, "a", 8, at=1000.0, node="h1")
        granted(session, "b", 8, at=1000.0, node="h2", **VISION)
        granted(session, "c", 1, at=1001.0, node="h2", **BORROWING)
    assert found(ledger) == [
        "1970-01-01T00:16:41+00:00: lease 3 of 1 × h100 for run c (team nlp): "
        "17 of 16 GPUs of the pool in use",
        "1970-01-01T00:16:41+00:00: lease 3 of 1 × h100 for run c (team nlp): "
        "9 of 8 GPUs of node h2 in use",
    ]


def test_more_than_a_pool_without_nodes_has(ledger: Ledger) -> None:
    with ledger.writing() as session:
        adopt(session)
        granted(session, "a", 4, node=None, pool="t4", **BORROWING)
        granted(session, "b", 1, node=None, pool="t4", **BORROWING)
    (said,) = found(ledger)
    assert "5 of 4 GPUs of the pool in use" in said


@pytest.mark.parametrize(
    ("policy", "gpus", "class_", "said"),
    [
        (POLICY, 13, Class.BORROWING, "13 GPUs with a quota of 8 and a borrow limit of 4"),
        (POLICY, 12, Class.BORROWING, None),
        (POLICY, 9, Class.GUARANTEED, "9 GPUs with a quota of 8, so it was not guaranteed"),
        (POLICY, 13, Class.URGENT, "left 3 GPUs free, and 4 are held back for others"),
        (POLICY, 12, Class.URGENT, None),
        (POLICY + "borrowing: {mode: off}\n", 9, Class.BORROWING, "it may not borrow"),
        (POLICY + "borrowing: {tiers: [milestone]}\n", 9, Class.BORROWING, "it may not borrow"),
        (POLICY + "borrowing: {mode: off}\n", 8, Class.GUARANTEED, None),
    ],
)
def test_more_than_a_team_may_have(
    ledger: Ledger, policy: str, gpus: int, class_: Class, said: str | None
) -> None:
    with ledger.writing() as session:
        adopt(session, policy.replace("h1: 8", "h1: 16").replace("h2: 8", "h2: 0"))
        granted(session, "a", gpus, class_=class_)
    violations = found(ledger)
    if said is None:
        assert violations == []
    else:
        assert any(said in violation for violation in violations), violations


def test_what_is_held_back_shrinks_with_its_owners_use(ledger: Ledger) -> None:
    with ledger.writing() as session:
        adopt(session, POLICY.replace("borrow_limit: {h100: 4}", ""))
        granted(session, "a", 4, at=1000.0, node="h1", **VISION)
        granted(session, "b", 4, at=1001.0, node="h1")
        granted(session, "c", 8, at=1002.0, node="h2", **BORROWING)
    assert found(ledger) == []


def test_only_who_took_it_is_to_blame(ledger: Ledger) -> None:
    with ledger.writing() as session:
        adopt(session)
        granted(session, "a", 8, at=1000.0, node="h1")
        granted(session, "b", 6, at=1001.0, node="h2", class_=Class.URGENT)
        granted(session, "c", 1, at=1002.0, node="h2", **VISION)
    (said,) = found(ledger)
    assert "run b (team nlp): it left 2 GPUs free, and 4 are held back for others" in said


def test_a_clock_that_was_set_back_changes_no_order(ledger: Ledger) -> None:
    with ledger.writing() as session:
        adopt(session)
        first = granted(session, "a", 8, at=5000.0, node="h1")
        lifecycle.release(session, first, 5010.0, "success")
        granted(session, "b", 8, at=1420.0, node="h1")
    assert found(ledger) == []


def test_gpus_are_held_until_their_end_was_seen(ledger: Ledger) -> None:
    """A lease ends when its run did, and its GPUs are another's only after the pass that saw it."""
    with ledger.writing() as session:
        adopt(session)
        first = granted(session, "a", 8, at=1000.0, node="h1")
        granted(session, "b", 8, at=1100.0, node="h1", **VISION)
        lifecycle.release(session, first, 1050.0, "success")
    assert [said.partition(": ")[2] for said in found(ledger)] == [
        "lease 2 of 8 × h100 for run b (team vision): 16 of 8 GPUs of node h1 in use"
    ]


def test_a_launch_that_failed_at_once_made_no_room(ledger: Ledger) -> None:
    with ledger.writing() as session:
        adopt(session)
        granted(session, "a", 5, at=1000.0, node=None, pool="t4", **BORROWING)
        failed = granted(session, "b", 4, at=1000.0, node=None, pool="t4", **BORROWING)
        lifecycle.recall(session, failed, 1000.0, "unreachable")
    said = found(ledger)
    assert "for run a (team nlp): 5 of 4 GPUs of the pool in use" in said[0]
    assert "for run b (team nlp): 9 of 4 GPUs of the pool in use" in said[1]


SPLIT = """\
pools: {h100: {nodes: {h1: 8, h2: 8}}}
teams:
  nlp:
    quota: {h100: 8}
    borrow_limit: {h100: 2}
    projects:
      pretrain: {quota: {h100: 4}, borrow_limit: {h100: 3}, lend_limit: {h100: 3}}
      eval: {quota: {h100: 2}}
  vision: {quota: {h100: 4}}
"""
PRETRAIN = {"project": "pretrain"}


@pytest.mark.parametrize(
    ("grants", "said"),
    [
        # Its own quota, then what the team lends it, then what other teams do.
        ([(4, Class.GUARANTEED, PRETRAIN), (3, Class.SHARED, PRETRAIN)], None),
        (
            [(5, Class.GUARANTEED, PRETRAIN)],
            "nlp/pretrain has 5 GPUs with a quota of 4, so it was not",
        ),
        (
            [(8, Class.SHARED, PRETRAIN)],
            "nlp/pretrain has 8 GPUs with a quota of 4 and a borrow limit of 3",
        ),
        ([(2, Class.GUARANTEED, {}), (5, Class.SHARED, {}), (3, Class.BORROWING, PRETRAIN)], None),
        ([(3, Class.GUARANTEED, {})], "nlp has 3 GPUs with a quota of 2, so it was not"),
        (
            [(7, Class.SHARED, {}), (2, Class.SHARED, PRETRAIN)],
            "nlp has 9 GPUs with a quota of 8, so it",
        ),
        (
            [(7, Class.SHARED, {}), (4, Class.BORROWING, PRETRAIN)],
            "nlp has 11 GPUs with a quota of 8 and a",
        ),
        # It is sure of its own quota, whatever the rest of its team has.
        ([(7, Class.SHARED, {}), (2, Class.BORROWING, {}), (4, Class.GUARANTEED, PRETRAIN)], None),
        # A project that has no quota here is one with the rest of its team.
        ([(2, Class.GUARANTEED, {"project": "other"}), (1, Class.SHARED, {})], None),
        # What a project does not lend is kept from its siblings and from other teams.
        ([(4, Class.GUARANTEED, VISION), (11, Class.URGENT, VISION)], None),
        (
            [(4, Class.GUARANTEED, VISION), (12, Class.URGENT, VISION)],
            "left no GPUs free, and 1 are held back",
        ),
        (
            [(8, Class.URGENT, VISION), (8, Class.URGENT, {})],
            "left no GPUs free, and 1 are held back",
        ),
        ([(8, Class.URGENT, VISION), (7, Class.SHARED, {}), (1, Class.GUARANTEED, PRETRAIN)], None),
    ],
)
def test_projects_have_their_part_of_the_team(
    ledger: Ledger, grants: list[tuple[int, Class, dict[str, str]]], said: str | None
) -> None:
    with ledger.writing() as session:
        adopt(session, SPLIT.replace("h1: 8, h2: 8", "h1: 16"))
        for at, (gpus, class_, more) in enumerate(grants):
            granted(session, f"run-{at}", gpus, at=1000.0 + at, class_=class_, **more)
    violations = found(ledger)
    if said is None:
        assert violations == []
    else:
        assert any(said in violation for violation in violations), violations


FOR_A_TIME = """\
pools: {h100: {nodes: {h1: 8}}}
teams: {nlp: {quota: {h100: 4}, borrow_limit: {h100: 0}}, vision: {quota: {h100: 2}}}
"""
GRANTS = """\
grants:
  - {team: nlp, pool: h100, gpus: 2, from: 1970-01-01T00:10:00Z, until: 1970-01-01T00:20:00Z,
     approved_by: ana, reason: deadline}
"""
WINDOWS = """\
windows:
  - {team: nlp, pool: h100, gpus: 2, cron: "10 * * * *", duration: 10m}
"""


@pytest.mark.parametrize("extra", [GRANTS, WINDOWS])
@pytest.mark.parametrize(
    ("at", "is_in_force"), [(599, False), (600, True), (1199, True), (1200, False)]
)
def test_grants_and_windows_count_while_they_are_in_force(
    ledger: Ledger, extra: str, at: float, is_in_force: bool
) -> None:
    with ledger.writing() as session:
        adopt(session, FOR_A_TIME + extra)
        granted(session, "a", 6, at=at)
    assert bool(found(ledger)) is not is_in_force


@pytest.mark.parametrize(
    ("at", "gpus", "is_kept"), [(599, 8, False), (600, 8, True), (600, 6, False)]
)
def test_what_a_window_holds_is_not_lent(
    ledger: Ledger, at: float, gpus: int, is_kept: bool
) -> None:
    with ledger.writing() as session:
        adopt(session, FOR_A_TIME + WINDOWS)
        granted(session, "a", gpus, at=at, team="vision", class_=Class.BORROWING)
    assert ["held back for others" in violation for violation in found(ledger)] == [True] * is_kept


def test_a_node_out_of_service_takes_nothing_new(ledger: Ledger) -> None:
    with ledger.writing() as session:
        adopt(session)
        before = granted(session, "before", 2, at=1000.0, node="h1")
        nodes.cordon(session, "h100", "h1", "ana", "fan", 1010.0)
        # The clock of the daemon is behind.
        granted(session, "during", 2, at=1005.0, node="h1")
        granted(session, "beside", 2, at=1006.0, node="h2", **VISION)
        nodes.uncordon(session, "h100", "h1", "ana", 1020.0)
        granted(session, "after", 2, at=1020.0, node="h1")
        lifecycle.release(session, before, 1030.0, "success")
    (said,) = found(ledger)
    assert said.endswith("run during (team nlp): node h1 was out of service")


def test_less_is_held_back_while_nodes_are_out_of_service(ledger: Ledger) -> None:
    """8 of 16 are left, and so is half of the 4 that vision does not lend."""
    with ledger.writing() as session:
        adopt(session, POLICY.replace("borrow_limit: {h100: 4}", ""))
        nodes.cordon(session, "h100", "h1", "ana", "fan", 999.0)
        granted(session, "a", 6, at=1000.0, node="h2")
    assert found(ledger) == []
    with ledger.writing() as session:
        granted(session, "b", 1, at=1001.0, node="h2")
    (said,) = found(ledger)
    assert "it left 1 GPU free, and 2 are held back for others" in said


def test_a_window_shrinks_with_the_pool_against_the_quotas_of_the_file(ledger: Ledger) -> None:
    """8 of 16 are left for quotas of 16, so 4 of the 8 that nlp's window holds."""
    window = "windows: [{team: nlp, pool: h100, gpus: 8, cron: '0 * * * *', duration: 1h}]\n"
    with ledger.writing() as session:
        adopt(session, POLICY.replace(", lend_limit: {h100: 4}", "") + window)
        nodes.cordon(session, "h100", "h1", "ana", "fan", 999.0)
        granted(session, "a", 4, at=1000.0, node="h2", **VISION)
    assert found(ledger) == []
    with ledger.writing() as session:
        granted(session, "b", 1, at=1001.0, node="h2", **VISION)
    (said,) = found(ledger)
    assert "it left 3 GPUs free, and 4 are held back for others" in said


def test_a_window_adds_no_more_than_the_quotas_leave(ledger: Ledger) -> None:
    """Of the 8 that vision's window would hold there is room for 4 beside the 4 that nlp does not lend."""
    policy = """\
pools: {h100: {nodes: {h1: 8}}}
teams: {nlp: {quota: {h100: 4}, lend_limit: {h100: 0}}, vision: {}, speech: {}}
windows: [{team: vision, pool: h100, gpus: 8, cron: '0 * * * *', duration: 1h}]
"""
    with ledger.writing() as session:
        adopt(session, policy)
        granted(session, "a", 4, at=1000.0)
    assert found(ledger) == []
    with ledger.writing() as session:
        granted(session, "b", 1, at=1001.0, team="speech", **BORROWING)
    (said,) = found(ledger)
    assert "it left 3 GPUs free, and 4 are held back for others" in said


def test_a_window_that_nobody_can_follow_is_no_rule(ledger: Ledger) -> None:
    with ledger.writing() as session:
        adopt(session, FOR_A_TIME + WINDOWS.replace("10 * * * *", "10 * 31 2 *"))
        granted(session, "a", 6)
    assert found(ledger) == ["policy v1 cannot be read, so its grants were not looked at"]


def test_each_grant_is_judged_by_the_policy_it_was_decided_by(ledger: Ledger) -> None:
    smaller = POLICY.replace("h1: 8", "h1: 4").replace("{h100: 8}", "{h100: 4}")
    with ledger.writing() as session:
        adopt(session)
        granted(session, "before", 8, at=1000.0, node="h1")
        assert adopt(session, smaller, at=2000.0) == 2
        # Decided by v1 just before v2 was adopted.
        granted(session, "between", 4, at=2001.0, node="h2", **BORROWING)
    assert found(ledger) == []
    with ledger.writing() as session:
        # Not known by which: what was in force then counts.
        session.execute(update(LeaseRow).values(policy_version=None))
    assert [line.split(": ")[1] for line in found(ledger)] == [
        "lease 2 of 4 × h100 for run between (team nlp)"
    ] * len(found(ledger))
    assert any("12 GPUs with a quota of 4" in line for line in found(ledger))


def test_a_node_that_left_the_pool_takes_its_use_along(ledger: Ledger) -> None:
    with ledger.writing() as session:
        adopt(session)
        granted(session, "a", 8, at=1000.0, node="h1")
        adopt(session, POLICY.replace("h1: 8", "h3: 8"), at=2000.0)
        granted(session, "b", 8, at=2001.0, node="h3", **VISION)
        session.execute(update(LeaseRow).where(LeaseRow.run_id == "b").values(policy_version=2))
    assert found(ledger) == []


def test_grants_that_no_policy_covers(ledger: Ledger) -> None:
    with ledger.writing() as session:
        granted(session, "a")
        session.execute(update(LeaseRow).values(policy_version=None))
    (said,) = found(ledger)
    assert "no policy was in force" in said
    with ledger.writing() as session:
        adopt(session, "pools: [", at=10.0)
    assert found(ledger) == ["policy v1 cannot be read, so its grants were not looked at"]
    with ledger.writing() as session:
        adopt(session, POLICY.replace("h100", "a100"), at=20.0)
    assert "no such pool" in found(ledger)[-1]


def test_two_leases_at_once_for_one_request(ledger: Ledger) -> None:
    with ledger.writing() as session:
        adopt(session)
        first = granted(session, "a", 2, at=1000.0)
        lifecycle.recall(session, first, 1010.0, "lost")
        granted(session, "a", 2, at=1010.0)
    assert found(ledger) == []
    with ledger.writing() as session:
        session.execute(delete(EventRow).where(EventRow.kind == "recalled"))
    (said,) = found(ledger)
    assert "request a has two leases at once: 1 and 2" in said


def test_use_without_a_grant_is_told_apart(ledger: Ledger) -> None:
    with ledger.writing() as session:
        adopt(session)
        granted(session, "a", 8, at=1000.0, node="h1")
        lifecycle.find(session, asked("b", 8, team="vision"), "h100", {"h1": 8000}, 1001.0)
        ended = lifecycle.find(session, asked("c", 1), "h100", {}, 1001.0)
        assert ended is not None
        lifecycle.release(session, ended, 1060.0, "success")
    assert found(ledger) == []
    with ledger.reading() as session:
        assert audit.ungated_use(session) == [
            "run b of team vision used 8 × h100 without a grant from 1970-01-01T00:16:41+00:00 on",
            "run c of team nlp used 1 × h100 without a grant from 1970-01-01T00:16:41+00:00 "
            "until 1970-01-01T00:17:40+00:00",
        ]


def test_a_long_record(ledger: Ledger) -> None:
    """Many runs after one another, one of them out of line."""
    with ledger.writing() as session:
        adopt(session)
        for number in range(60):
            more: dict[str, Any] = {"gpus": 9} if number == 50 else {"gpus": 8}
            id_ = granted(session, f"run-{number}", at=1000.0 + 10 * number, **more)
            lifecycle.release(session, id_, 1010.0 + 10 * number, "success")
    violations = found(ledger)
    assert violations
    assert all("run-50" in violation for violation in violations)
