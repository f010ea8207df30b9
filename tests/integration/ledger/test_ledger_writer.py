"""Two daemons by mistake: one writes grants, the other waits until it is really gone."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest
from ledger_processes import grant_slowly, running, write_grants
from sqlalchemy import URL

from dagster_gpufair.ledger import requests, writer
from dagster_gpufair.ledger.connect import Ledger
from dagster_gpufair.ledger.writer import Clock, Holder

TTL = 30.0


def holder(name: str) -> Holder:
    return Holder(host=f"machine of {name}", pid=1, id=name, started=1000.0)


def take(ledger: Ledger, by: Holder, now: float) -> int | None:
    with ledger.writing() as session:
        return writer.take(session, by, Clock(now, "ours"), TTL)


def still(ledger: Ledger, by: Holder, epoch: int, now: float) -> bool:
    with ledger.writing() as session:
        return writer.still(session, by.id, epoch, Clock(now, "ours"), TTL)


def test_one_at_a_time_and_a_higher_epoch_at_each_change(ledger: Ledger) -> None:
    ann, ben = holder("ann"), holder("ben")
    with ledger.reading() as session:
        assert writer.current(session) is None
    assert take(ledger, ann, 1000.0) == 1
    assert take(ledger, ben, 1029.0) is None
    assert take(ledger, ann, 1029.0) == 1
    assert take(ledger, ben, 1058.0) is None
    assert take(ledger, ben, 1059.0) == 2
    assert take(ledger, ann, 1060.0) is None
    with ledger.writing() as session:
        writer.release(session, "ann")
    assert take(ledger, ann, 1061.0) is None
    with ledger.writing() as session:
        writer.release(session, "ben")
    with ledger.reading() as session:
        assert writer.current(session) == writer.Writer(None, 2, 0.0, "ours")
    assert take(ledger, ann, 1062.0) == 3
    with ledger.reading() as session:
        assert writer.current(session) == writer.Writer(ann, 3, 1092.0, "ours")


def test_a_grant_asks_whether_the_right_is_still_held(ledger: Ledger) -> None:
    ann, ben = holder("ann"), holder("ben")
    assert not still(ledger, ann, 1, 1000.0)
    assert take(ledger, ann, 1000.0) == 1
    assert still(ledger, ann, 1, 1029.0)
    assert take(ledger, ben, 1040.0) is None, "asking renews"
    # Expired, but nobody wanted it.
    assert still(ledger, ann, 1, 2000.0)
    assert take(ledger, ben, 3000.0) == 2
    assert not still(ledger, ann, 1, 3000.0)
    assert take(ledger, ann, 4000.0) == 3
    assert not still(ledger, ann, 1, 4000.0), "the grants it had in mind are of another time"


def test_a_daemon_that_was_killed_is_followed_at_once(url: URL) -> None:
    ledger = Ledger(url)
    ours = Holder.here(started=1000.0)
    with running(write_grants, url) as (process, pipe):
        assert pipe.recv() == 1
        assert take(ledger, ours, 1001.0) is None
        pipe.send(1002.0)
        assert pipe.recv() is True
        process.kill()
        process.join()
        assert take(ledger, ours, 1003.0) == 2
    ledger.dispose()


def test_a_daemon_that_hangs_is_followed_when_its_time_is_over_and_grants_nothing_then(
    url: URL,
) -> None:
    ledger = Ledger(url)
    with running(write_grants, url) as (_, pipe):
        assert pipe.recv() == 1
        ours = Holder.here(started=1000.0)
        assert take(ledger, ours, 1029.0) is None
        assert take(ledger, ours, 1030.0) == 2
        pipe.send(1031.0)
        assert pipe.recv() is False
    ledger.dispose()


def test_nobody_takes_over_in_the_middle_of_a_grant(url: URL) -> None:
    ledger = Ledger(url)
    trying = threading.Event()
    seen: list[tuple[int | None, str]] = []

    def follow() -> None:
        trying.set()
        with ledger.writing() as session:
            epoch = writer.take(session, holder("ours"), Clock(5000.0, "ours"), TTL)
            seen.append((epoch, requests.by_ids(session, ["run-1"])["run-1"].state))

    with running(grant_slowly, url) as (process, pipe):
        assert pipe.recv() is True
        follower = threading.Thread(target=follow)
        follower.start()
        trying.wait()
        pipe.send("go on")
        follower.join()
        process.join()
        assert process.exitcode == 0
    assert seen == [(2, "granted")]
    ledger.dispose()


def test_a_process_of_another_machine_is_not_taken_for_dead(ledger: Ledger) -> None:
    here = Holder.here(started=1000.0)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    gone = ended.pid
    assert take(ledger, Holder("elsewhere", gone, "far", 1000.0), 1000.0) == 1
    assert take(ledger, here, 1001.0) is None
    assert take(ledger, Holder(here.host, gone, "near", 1000.0), 1030.0) == 2
    assert take(ledger, here, 1031.0) == 3


def test_a_daemon_that_is_begun_again_in_its_process_goes_on(ledger: Ledger) -> None:
    before, after = Holder.here(started=1000.0), Holder.here(started=1001.0)
    assert take(ledger, before, 1000.0) == 1
    assert take(ledger, after, 1001.0) == 2
    assert not still(ledger, before, 1, 1001.0)


def test_the_turn_of_a_daemon_whose_machine_was_booted_since_is_over(ledger: Ledger) -> None:
    with ledger.writing() as session:
        assert writer.take(session, holder("ann"), Clock(90_000.0, "boot 1"), TTL) == 1
        assert writer.take(session, holder("ben"), Clock(10.0, "boot 1"), TTL) is None
        assert writer.take(session, holder("ben"), Clock(10.0, "boot 2"), TTL) == 2


def test_turns_are_timed_by_a_clock_that_nobody_sets(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A daemon whose time of day is an hour ahead does not keep its turn for an hour."""
    with ledger.writing() as session:
        before = writer.turn_clock(session)
        monkeypatch.setattr("time.time", lambda: 9e9)
        after = writer.turn_clock(session)
    assert after.whose == before.whose
    assert 0 <= after.now - before.now < 60
