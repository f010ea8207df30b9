"""The record of what happened, policies and the last word on things."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

from ledger_samples import POLICY, asked

from dagster_gpufair.ledger import events, lifecycle, policies, status
from dagster_gpufair.ledger.connect import Ledger


def test_events_hold_whatever_a_tag_or_an_error_says(ledger: Ledger) -> None:
    odd = {
        "emoji": "🚀" * 3,
        "nul": "a\x00b",
        "half \ud83d": ["half \udc00", ("tuple", {"deep": "\x00"})],
        "long": "ä" * 10_000,
        "numbers": [1, 2.5, float("nan"), float("inf"), 10**30],
        "none": None,
        "yes": True,
        7: Path("/some/where"),
        "when": datetime(2026, 6, 1, tzinfo=timezone.utc),
    }
    with ledger.writing() as session:
        events.append(session, "note", 1000.0, run_id="run \x00", team="团队", data=odd)
    with ledger.reading() as session:
        (event,) = events.of_run(session, "run \x00")
    assert event.team == "团队"
    assert event.data == {
        "emoji": "🚀" * 3,
        "nul": "a\ufffdb",
        "half \ufffd": ["half \ufffd", ["tuple", {"deep": "\ufffd"}]],
        "long": "ä" * 10_000,
        "numbers": [1, 2.5, "nan", "inf", 10**30],
        "none": None,
        "yes": True,
        "7": "/some/where",
        "when": "2026-06-01 00:00:00+00:00",
    }


def test_a_cursor_reads_each_event_once(ledger: Ledger) -> None:
    with ledger.reading() as session:
        assert events.newest(session) == 0
    with ledger.writing() as session:
        for number in range(5):
            events.append(session, "note", float(number), pool="h100")
    with ledger.reading() as session:
        first = events.since(session, 0, limit=3)
        rest = events.since(session, first[-1].id)
        assert events.since(session, rest[-1].id) == []
        assert events.newest(session) == rest[-1].id
    assert [event.at for event in (*first, *rest)] == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert (first[0].kind, first[0].pool, first[0].run_id, first[0].data) == (
        "note",
        "h100",
        None,
        {},
    )


def test_what_was_undone_leaves_no_event(ledger: Ledger) -> None:
    with ledger.writing() as session:
        try:
            with session.begin_nested():
                lifecycle.submit(session, asked("run-1"))
                raise RuntimeError("this one does not work")
        except RuntimeError:
            lifecycle.submit(session, asked("run-2"))
    with ledger.reading() as session:
        assert [event.run_id for event in events.since(session, 0)] == ["run-2"]


def test_the_newest_policy_is_in_force(ledger: Ledger) -> None:
    with ledger.writing() as session:
        assert policies.in_force(session) is None
        first = policies.adopt(session, POLICY, "d1", "gpufair.yaml", "ann", 1000.0)
        assert policies.adopt(session, POLICY, "d1", "gpufair.yaml", "ben", 1001.0) == first
        second = policies.adopt(session, "pools: {}", "d2", "gpufair.yaml", "ben", 1002.0)
        # Back to what was before is a change as well.
        third = policies.adopt(session, POLICY, "d1", "rollback to v1", "ann", 1003.0)
    with ledger.reading() as session:
        in_force = policies.in_force(session)
        history = policies.history(session)
        adopted = [event for event in events.since(session, 0) if event.kind == "policy"]
    assert first < second < third
    assert [version.version for version in history] == [first, second, third]
    assert in_force == history[-1]
    assert in_force is not None
    assert (in_force.document, in_force.digest, in_force.source) == (POLICY, "d1", "rollback to v1")
    assert (in_force.adopted_by, in_force.adopted_at) == ("ann", 1003.0)
    assert [event.data["version"] for event in adopted] == [first, second, third]


def test_the_last_word_counts(ledger: Ledger) -> None:
    with ledger.writing() as session:
        assert status.get(session, "daemon") is None
        for value in ({"at": 1.5, "host": "a\x00"}, [1, 2], "text", 3, 2.5, True, None):
            status.put(session, "daemon", value, 1000.0)
            expected = {"at": 1.5, "host": "a\ufffd"} if isinstance(value, dict) else value
            assert status.get(session, "daemon") == expected
        assert status.get(session, "other") is None
