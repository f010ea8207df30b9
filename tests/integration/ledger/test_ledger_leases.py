"""Leases: granted once, launched once, released once, whoever asks however often."""

from __future__ import annotations

import pytest
from ledger_samples import asked, granted
from sqlalchemy import insert, text
from sqlalchemy.exc import IntegrityError

from dagster_gpufair.ledger import events, leases, lifecycle, requests
from dagster_gpufair.ledger.connect import Ledger, LedgerError, NotQueued
from dagster_gpufair.ledger.tables import LeaseRow
from dagster_gpufair.scheduling.model import Class, Lease


def test_a_grant_is_a_lease_of_what_was_asked(ledger: Ledger) -> None:
    with ledger.writing() as session:
        request = asked(
            project="pretrain",
            kind="training",
            source="ann",
            max_duration=3600.0,
            preempted=1,
            cpus=16.0,
            memory_gib=0.5,
        )
        lifecycle.submit(session, request)
        lease_id = lifecycle.grant(
            session,
            "run-1",
            pool="h100",
            gpus=12_000,
            nodes={"h1": 8000, "h2": 4000},
            class_=Class.BORROWING,
            at=1060.0,
            policy_version=7,
            data={"points": {"wait": 1.5}},
        )
        (lease,) = leases.open_leases(session)
        assert leases.of_run(session, "run-1") == [lease]
        known = requests.by_ids(session, ["run-1"])["run-1"]
        event = events.of_run(session, "run-1")[-1]
    assert lease.id == lease_id
    assert (lease.class_, lease.ungated, lease.policy_version) == (Class.BORROWING, False, 7)
    assert lease.to_lease() == Lease(
        id="run-1",
        team="nlp",
        tier="standard",
        pool="h100",
        gpus=12_000,
        started=1060.0,
        nodes={"h1": 8000, "h2": 4000},
        project="pretrain",
        max_duration=3600.0,
        source="ann",
        preempted=1,
        cpus=16.0,
        memory_gib=0.5,
        starting=True,
    )
    assert (known.state, known.policy_version) == ("granted", 7)
    assert (event.kind, event.at, event.pool) == ("granted", 1060.0, "h100")
    assert event.data["lease"] == lease_id
    assert event.data["class"] == "borrowing"
    assert event.data["nodes"] == {"h1": 8000, "h2": 4000}
    assert event.data["points"] == {"wait": 1.5}


@pytest.mark.parametrize("class_", Class)
def test_every_class_is_kept(ledger: Ledger, class_: Class) -> None:
    with ledger.writing() as session:
        granted(session, class_=class_)
    with ledger.reading() as session:
        (lease,) = leases.open_leases(session)
        event = events.of_run(session, "run-1")[-1]
    assert lease.class_ is class_
    assert event.data["class"] == class_.name.lower()


def test_a_request_is_granted_once(ledger: Ledger) -> None:
    with ledger.writing() as session:
        granted(session)
    with pytest.raises(NotQueued, match="run-1"), ledger.writing() as session:
        granted(session)
    with ledger.reading() as session:
        assert len(leases.ever(session)) == 1


@pytest.mark.parametrize("end", ["cancelled", "refused", "unknown"])
def test_what_does_not_wait_is_granted_nothing(ledger: Ledger, end: str) -> None:
    with ledger.writing() as session:
        if end == "cancelled":
            lifecycle.submit(session, asked())
            lifecycle.cancel(session, ["run-1"], 1001.0, "canceled")
        if end == "refused":
            lifecycle.refuse(session, asked(), "exceeds_pool", "no", 1001.0)
    with pytest.raises(LedgerError), ledger.writing() as session:
        lifecycle.grant(
            session,
            "run-1",
            pool="h100",
            gpus=8000,
            nodes={},
            class_=Class.GUARANTEED,
            at=1002.0,
            policy_version=1,
        )
    with ledger.reading() as session:
        assert leases.ever(session) == []


def test_the_database_itself_refuses_a_second_open_lease(ledger: Ledger) -> None:
    with ledger.writing() as session:
        granted(session)
    with pytest.raises(IntegrityError), ledger.writing() as session:
        row = session.execute(text("SELECT * FROM gpufair_leases")).mappings().one()
        values = {key if key != "class" else "class_": value for key, value in row.items()}
        session.execute(insert(LeaseRow).values({**values, "id": 99, "nodes": {}}))


def test_all_grants_of_a_pass_or_none(ledger: Ledger) -> None:
    with ledger.writing() as session:
        lifecycle.submit(session, asked("run-1"))
    with pytest.raises(NotQueued), ledger.writing() as session:
        granted(session, "run-1")
        lifecycle.grant(
            session,
            "gone",
            pool="h100",
            gpus=8000,
            nodes={},
            class_=Class.GUARANTEED,
            at=1000.0,
            policy_version=1,
        )
    with ledger.reading() as session:
        assert leases.ever(session) == []
        assert [request.state for request in requests.open_requests(session)] == ["queued"]
        assert [event.kind for event in events.since(session, 0)] == ["submitted"]


def test_a_lease_released_twice_is_released_once(ledger: Ledger) -> None:
    with ledger.writing() as session:
        lease_id = granted(session, at=1000.0)
        assert lifecycle.release(session, lease_id, 1100.0, "success")
    with ledger.writing() as session:
        assert not lifecycle.release(session, lease_id, 1200.0, "failure")
        assert not lifecycle.recall(session, lease_id, 1200.0, "launch failed")
        assert not lifecycle.release(session, 12345, 1200.0, "unknown")
    with ledger.reading() as session:
        (lease,) = leases.ever(session)
        known = requests.by_ids(session, ["run-1"])["run-1"]
        happened = events.of_run(session, "run-1")
        assert leases.open_leases(session) == []
    assert (lease.released_at, lease.release_reason, lease.void) == (1100.0, "success", False)
    assert (known.state, known.finished_at) == ("released", 1100.0)
    assert [event.kind for event in happened] == ["submitted", "granted", "released"]
    assert happened[-1].data == {
        "lease": lease_id,
        "request": "run-1",
        "gpus": 8000,
        "held": 100.0,
        "reason": "success",
    }


def test_a_clock_that_is_behind_ends_no_lease_before_it_began(ledger: Ledger) -> None:
    with ledger.writing() as session:
        lifecycle.release(session, granted(session, at=1000.0), 990.0, "success")
        (lease,) = leases.ever(session)
    assert lease.released_at == 1000.0


def test_a_launch_that_could_not_happen_is_undone(ledger: Ledger) -> None:
    blocked = ("environment", "code location nlp is unreachable")
    with ledger.writing() as session:
        first = granted(session, at=1000.0, source="ann")
        assert lifecycle.recall(session, first, 1002.0, "unreachable", blocked)
        (waiting,) = requests.waiting(session)
        assert waiting.submitted_at == 1000.0
        assert (waiting.blocked_reason, waiting.blocked_message) == blocked
        # As if it had not started: it does not wait from here on.
        assert leases.source_starts(session) == {}
        second = granted(session, at=1010.0)
        assert second > first
        assert lifecycle.recall(session, second, 1011.0, "launcher is full")
        (waiting,) = requests.waiting(session)
        assert (waiting.blocked_reason, waiting.finished_at) == (None, None)
        kinds = [event.kind for event in events.of_run(session, "run-1")]
    assert kinds == ["submitted", "granted", "recalled", "granted", "recalled"]


def test_a_run_found_running_without_a_grant_is_counted(ledger: Ledger) -> None:
    with ledger.writing() as session:
        lifecycle.submit(session, asked("waiting", gpus=2))
        first = lifecycle.find(session, asked("waiting", gpus=2), "h100", {"h1": 2000}, 1005.0)
        assert first is not None
        assert lifecycle.find(session, asked("waiting"), "h100", {}, 1006.0) is None
        stranger = asked("stranger", gpus=1, team="vision", tier="exploratory")
        second = lifecycle.find(session, stranger, "h100", {}, 1005.0)
        assert second is not None
        granted(session, "granted", node="h2")
        assert lifecycle.find(session, asked("granted"), "h100", {}, 1006.0) is None
        held = {lease.request_id: lease for lease in leases.open_leases(session)}
        assert requests.waiting(session) == []
        assert lifecycle.release(session, second, 1010.0, "success")
        assert requests.by_ids(session, ["stranger"])["stranger"].state == "released"
        # It was taken for over, and is not.
        assert lifecycle.find(session, stranger, "h100", {}, 1011.0) is not None
        assert requests.by_ids(session, ["stranger"])["stranger"].state == "granted"
    assert {id_: lease.ungated for id_, lease in held.items()} == {
        "waiting": True,
        "stranger": True,
        "granted": False,
    }
    assert (held["stranger"].class_, held["stranger"].gpus) == (None, 1000)
    assert held["stranger"].to_lease().team == "vision"


def test_a_run_is_launched_by_one_daemon(ledger: Ledger) -> None:
    with ledger.writing() as session:
        lease_id = granted(session)
        assert lifecycle.claim(session, lease_id, 3, "host", 1001.0)
        assert not lifecycle.claim(session, lease_id, 3, "host", 1001.0)
        assert not lifecycle.claim(session, lease_id, 2, "host", 1001.0)
        # The daemon of epoch 3 died between the claim and the launch.
        assert lifecycle.claim(session, lease_id, 4, "host", 1001.0)
        lifecycle.release(session, lease_id, 1100.0, "canceled")
        assert not lifecycle.claim(session, lease_id, 5, "host", 1001.0)


def test_an_owner_is_warned_once(ledger: Ledger) -> None:
    with ledger.writing() as session:
        lease_id = granted(session)
        assert lifecycle.warn(session, lease_id, 1200.0)
        assert not lifecycle.warn(session, lease_id, 1201.0)
        (lease,) = leases.open_leases(session)
        assert lease.warned_at == 1200.0
        lifecycle.release(session, lease_id, 1300.0, "success")
        other = granted(session, "run-2")
        lifecycle.release(session, other, 1300.0, "success")
        assert not lifecycle.warn(session, other, 1301.0)


def test_the_newest_start_of_each_source(ledger: Ledger) -> None:
    with ledger.writing() as session:
        for number, (source, node) in enumerate([("ann", "h1"), ("ann", "h2"), ("ben", "h3")]):
            granted(session, f"old-{number}", at=1000.0 + number, source=source, node=node)
        granted(session, "other", at=1050.0, source="ann", team="vision", node="h4")
        granted(session, "job", at=1060.0, node="h5")
        for number, source in enumerate(["ann", "new", None]):
            lifecycle.submit(session, asked(f"new-{number}", source=source))
        lifecycle.release(session, 1, 1070.0, "success")
        assert leases.source_starts(session) == {("nlp", "ann"): 1001.0}
        asked_for = [("vision", "ann"), ("nlp", "ben"), ("nlp", "none")]
        assert leases.source_starts(session, asked_for) == {
            ("vision", "ann"): 1050.0,
            ("nlp", "ben"): 1002.0,
        }
        assert leases.source_starts(session, []) == {}
