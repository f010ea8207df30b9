"""History is kept as long as the policy says; what is older is summed up, and decisions lose nothing."""

from __future__ import annotations

from typing import Any

import pytest
from ledger_samples import asked, granted
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from dagster_gpufair.ledger import events, leases, lifecycle, requests, retention
from dagster_gpufair.ledger.connect import Ledger
from dagster_gpufair.ledger.replay import past_passes
from dagster_gpufair.ledger.tables import EventRow, LeaseRow, RequestRow

DAY = 86_400.0


def ran(session: Session, id_: str, at: float, lasts: float = 3600.0, **more: Any) -> None:
    """A run of eight GPUs that waited for nothing and has succeeded."""
    lease_id = granted(session, id_, at=at, **more)
    lifecycle.release(session, lease_id, at + lasts, "success")


def left(session: Session) -> list[int]:
    """How many (requests, leases, events) there are."""
    return [
        session.scalar(select(func.count()).select_from(table)) or 0
        for table in (RequestRow, LeaseRow, EventRow)
    ]


def prune_all(ledger: Ledger, before: float) -> int:
    """Bite after bite; how many it took."""
    bites = 1
    while True:
        with ledger.writing() as session:
            if retention.prune(session, before) < retention.BITE:
                return bites
        bites += 1


def test_what_is_old_goes_whole_and_is_summed_up_by_day(ledger: Ledger) -> None:
    with ledger.writing() as session:
        ran(session, "one", 0.0)
        ran(session, "two", 100.0)
        lifecycle.submit(session, asked("waited", at=0.0))
        lifecycle.cancel(session, ["waited"], 1800.0, "canceled")
        ran(session, "another-day", DAY)
        ran(session, "young", 10 * DAY)

    prune_all(ledger, before=5 * DAY)

    with ledger.reading() as session:
        assert requests.by_ids(
            session, ["one", "two", "waited", "another-day", "young"]
        ).keys() == {"young"}
        assert {event.run_id for event in events.since(session, 0)} == {"young"}
        sums = [
            (row.day, row.pool, row.ended_as, row.requests, row.gpu_seconds, row.waited)
            for row in retention.past_use(session)
        ]
    assert sorted(sums) == [
        ("1970-01-01", "", "cancelled", 1, 0.0, 1800.0),
        ("1970-01-01", "h100", "success", 2, 2 * 8 * 3600.0, 0.0),
        ("1970-01-02", "h100", "success", 1, 8 * 3600.0, 0.0),
    ]


def test_it_goes_in_small_bites_and_sums_come_out_the_same(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "BITE", 3)
    with ledger.writing() as session:
        for number in range(10):
            ran(session, f"run-{number}", float(number))

    assert prune_all(ledger, before=DAY) == 4

    with ledger.reading() as session:
        assert left(session) == [0, 0, 0]
        (row,) = retention.past_use(session)
    assert (row.requests, row.gpu_seconds) == (10, 10 * 8 * 3600.0)


def test_what_is_open_is_kept_however_old_it_is(ledger: Ledger) -> None:
    with ledger.writing() as session:
        granted(session, "runs", at=0.0)
        lifecycle.submit(session, asked("waits", at=0.0))
        before = left(session)

    prune_all(ledger, before=1000 * DAY)

    with ledger.reading() as session:
        assert left(session) == before


def test_a_request_that_waits_still_knows_when_its_source_last_started(ledger: Ledger) -> None:
    with ledger.writing() as session:
        lifecycle.submit(session, asked("waits", at=0.0, source="ann"))
        ran(session, "one", 100.0, source="ann")
        starts = leases.source_starts(session)

    prune_all(ledger, before=1000 * DAY)

    with ledger.reading() as session:
        assert leases.source_starts(session) == starts == {("nlp", "ann"): 100.0}


def test_passes_can_be_replayed_from_what_is_kept(ledger: Ledger) -> None:
    passes = {"policy_version": 1, "used": [], "blocked": {}, "unblocked": [], "starts": []}
    with ledger.writing() as session:
        ran(session, "old", 0.0)
        events.append(session, "pass", 10.0, data=passes)
        granted(session, "runs", at=20.0)
        lifecycle.submit(session, asked("new", at=10 * DAY))
        events.append(session, "pass", 10 * DAY, data=passes)

    prune_all(ledger, before=5 * DAY)

    with ledger.reading() as session:
        record = events.since(session, 0)
    assert [past.at for past in past_passes(record)] == [10 * DAY]
