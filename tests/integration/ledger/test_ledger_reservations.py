"""What a pass keeps for whom: an event when it changes, nothing while it stays."""

from __future__ import annotations

from dataclasses import replace

from ledger_samples import asked

from dagster_gpufair.ledger import events, lifecycle, reservations
from dagster_gpufair.ledger.connect import Ledger
from dagster_gpufair.scheduling.model import Class, Reservation

NOW = 1000.0
KEPT = Reservation(
    request=asked("run-1").to_request(),
    pool="h100",
    gpus=8000,
    nodes={"h1": 8000},
    at=2000.0,
    class_=Class.SHARED,
)


def passes(ledger: Ledger, *decided: Reservation, now: float = NOW) -> int:
    """A pass of a daemon that has just begun; how many changes it recorded."""
    with ledger.writing() as session:
        before = reservations.current(session)
        rows, new = reservations.compared(before, decided, now)
        if rows != before:
            reservations.record(session, rows, new, now)
        assert reservations.current(session) == rows
    return len(new)


def test_a_reservation_is_an_event_of_its_run(ledger: Ledger) -> None:
    with ledger.writing() as session:
        lifecycle.submit(session, asked("run-1"))
    assert passes(ledger, KEPT) == 1
    with ledger.reading() as session:
        (_, event) = events.of_run(session, "run-1")
    assert (event.kind, event.at, event.team, event.pool) == ("reserved", NOW, "nlp", "h100")
    assert event.data == {
        "request": "run-1",
        "gpus": 8000,
        "nodes": {"h1": 8000},
        "at": 2000.0,
        "class": "shared",
        "of_quota": False,
    }


def test_what_stays_is_not_told_again(ledger: Ledger) -> None:
    unknown_start = replace(KEPT, pool="t4", nodes={}, at=None)
    of_quota = replace(KEPT, nodes={}, of_quota=True)
    assert passes(ledger, KEPT, unknown_start, of_quota) == 3
    assert passes(ledger, of_quota, unknown_start, KEPT) == 0
    assert passes(ledger, KEPT, unknown_start, of_quota, now=NOW + 500) == 0


def test_what_changes_is_told(ledger: Ledger) -> None:
    assert passes(ledger, KEPT) == 1
    assert passes(ledger, replace(KEPT, nodes={"h2": 8000})) == 1
    assert passes(ledger, replace(KEPT, gpus=4000)) == 1
    assert passes(ledger, replace(KEPT, gpus=4000, at=None)) == 1
    assert passes(ledger) == 0
    assert passes(ledger, replace(KEPT, gpus=4000, at=None)) == 1, "it was gone in between"
    other = replace(KEPT, request=asked("run-2").to_request())
    assert passes(ledger, other) == 1


def test_a_start_that_moves_a_little_is_the_same(ledger: Ledger) -> None:
    assert passes(ledger, KEPT) == 1
    for earlier in (30, 59):
        assert passes(ledger, replace(KEPT, at=2000.0 - earlier)) == 0
    assert passes(ledger, replace(KEPT, at=2000.0 - 60)) == 1, "little by little it is much"
    assert passes(ledger, replace(KEPT, at=2000.0)) == 1


def test_a_start_that_is_overdue_is_now_at_every_pass(ledger: Ledger) -> None:
    assert passes(ledger, KEPT) == 1
    for late in (2000.0, 3000.0, 4000.0):
        assert passes(ledger, replace(KEPT, at=late), now=late) == 0


def test_one_that_is_lost_says_to_whom(ledger: Ledger) -> None:
    with ledger.writing() as session:
        lifecycle.submit(session, asked("run-1"))
    other = replace(KEPT, request=asked("run-2").to_request())
    passes(ledger, KEPT)
    passes(ledger, replace(KEPT, nodes={"h2": 8000}), now=NOW + 1)
    passes(ledger, other, now=NOW + 2)
    passes(ledger, now=NOW + 3)
    with ledger.reading() as session:
        happened = events.of_kinds(session, ("reserved", "unreserved"))
    assert [(event.kind, event.at, event.data["request"]) for event in happened] == [
        ("reserved", NOW, "run-1"),
        ("reserved", NOW + 1, "run-1"),
        ("unreserved", NOW + 2, "run-1"),
        ("reserved", NOW + 2, "run-2"),
        ("unreserved", NOW + 3, "run-2"),
    ]
    ends = [event for event in happened if event.kind == "unreserved"]
    assert [event.data["instead"] for event in ends] == [["run-2"], []]
    assert (ends[0].run_id, ends[0].team, ends[0].pool) == ("run-1", "nlp", "h100")
