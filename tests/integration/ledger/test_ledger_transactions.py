"""Reading and writing: all or nothing, one writer at a time, and what a broken database looks like."""

from __future__ import annotations

import multiprocessing
import threading
from pathlib import Path
from typing import Any

import pytest
from ledger_samples import asked
from sqlalchemy import URL, text

from dagster_gpufair.ledger import events, lifecycle, requests
from dagster_gpufair.ledger.connect import Ledger, LedgerUnavailable


def known(ledger: Ledger) -> list[str]:
    with ledger.reading() as session:
        return sorted(request.id for request in requests.open_requests(session))


def test_a_block_that_raises_leaves_nothing(ledger: Ledger) -> None:
    with pytest.raises(RuntimeError, match="in between"), ledger.writing() as session:
        lifecycle.submit(session, asked())
        raise RuntimeError("in between")
    assert known(ledger) == []


def test_nothing_is_written_while_reading(ledger: Ledger) -> None:
    with pytest.raises(LedgerUnavailable, match=r"read-?only"), ledger.reading() as session:
        lifecycle.submit(session, asked())
    with ledger.writing() as session:
        lifecycle.submit(session, asked("run-2"))
    assert known(ledger) == ["run-2"]


def test_a_reader_sees_one_moment(ledger: Ledger) -> None:
    with ledger.reading() as reader:
        assert requests.open_requests(reader) == []
        with ledger.writing() as session:
            lifecycle.submit(session, asked())
        assert requests.open_requests(reader) == []
    assert known(ledger) == ["run-1"]


def test_writers_wait_for_one_another_and_events_come_in_order(ledger: Ledger) -> None:
    ledger.open()
    inside, cursor = threading.Event(), []

    def second() -> None:
        inside.wait()
        with ledger.writing() as session:
            # The first is done when the second begins, so no event can turn up below this one.
            cursor.append(events.newest(session))
            lifecycle.submit(session, asked("run-2"))

    thread = threading.Thread(target=second)
    thread.start()
    with ledger.writing() as session:
        lifecycle.submit(session, asked("run-1"))
        inside.set()
        lifecycle.submit(session, asked("run-3"))
    thread.join()
    with ledger.reading() as session:
        later = events.since(session, cursor[0])
    assert [event.run_id for event in later] == ["run-2"]
    assert known(ledger) == ["run-1", "run-2", "run-3"]


def test_many_threads_share_a_ledger(ledger: Ledger) -> None:
    def submit(first: int) -> None:
        for number in range(first, first + 5):
            with ledger.writing() as session:
                lifecycle.submit(session, asked(f"run-{number:02}"))

    threads = [threading.Thread(target=submit, args=(10 * number,)) for number in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(known(ledger)) == 40


def test_a_forked_process_makes_connections_of_its_own(ledger: Ledger) -> None:
    with ledger.writing() as session:
        lifecycle.submit(session, asked("parent"))

    def child() -> None:
        with ledger.writing() as session:
            lifecycle.submit(session, asked("child"))

    with ledger.reading() as session:
        requests.open_requests(session)
        process = multiprocessing.get_context("fork").Process(target=child)
        process.start()
        process.join()
        assert process.exitcode == 0
        # The parent's open transaction is untouched.
        assert len(requests.open_requests(session)) == 1
    with ledger.writing() as session:
        lifecycle.submit(session, asked("parent-again"))
    assert known(ledger) == ["child", "parent", "parent-again"]


def test_a_forked_process_does_not_talk_over_the_parents_connection(postgres_url: URL) -> None:
    def backend() -> int:
        with ledger.reading() as session:
            return session.scalar(text("SELECT pg_backend_pid()")) or 0

    ledger = Ledger(postgres_url)
    ours, theirs = multiprocessing.Pipe()
    idle = backend()
    process = multiprocessing.get_context("fork").Process(target=lambda: theirs.send(backend()))
    process.start()
    of_the_child = ours.recv()
    process.join()
    assert of_the_child != idle
    assert backend() == idle
    ledger.dispose()


def test_a_full_disk(tmp_path: Path) -> None:
    ledger = Ledger(URL.create("sqlite", database=str(tmp_path / "gpufair.db")))
    with ledger.writing() as session:
        lifecycle.submit(session, asked("before"))
    with pytest.raises(LedgerUnavailable, match="full") as said, ledger.writing() as session:
        pages = session.scalar(text("PRAGMA page_count"))
        session.execute(text(f"PRAGMA max_page_count={pages}"))
        lifecycle.submit(session, asked("during"))
        events.append(session, "note", 1000.0, data={"text": "x" * 100_000})
    assert said.value.__cause__ is not None
    assert known(ledger) == ["before"]
    with ledger.writing() as session:
        session.execute(text("PRAGMA max_page_count=1000000"))
        lifecycle.submit(session, asked("after"))
    assert known(ledger) == ["after", "before"]
    ledger.dispose()


def test_a_server_that_is_stopped_and_started_again(postgres_url: URL, postgres: Any) -> None:
    ledger = Ledger(postgres_url)
    with ledger.writing() as session:
        lifecycle.submit(session, asked("before"))
    postgres.stop()
    postgres.start()
    # The connection that was kept for this is gone, and nobody notices.
    assert known(ledger) == ["before"]
    with pytest.raises(LedgerUnavailable) as cut, ledger.writing() as session:
        lifecycle.submit(session, asked("during"))
        postgres.stop()
        session.execute(text("SELECT 1"))
    assert str(postgres_url.database) in str(cut.value)
    try:
        with pytest.raises(LedgerUnavailable), ledger.reading():
            pass
    finally:
        postgres.start()
    assert known(ledger) == ["before"]
    with ledger.writing() as session:
        lifecycle.submit(session, asked("after"))
    assert known(ledger) == ["after", "before"]
    ledger.dispose()


def test_a_ledger_that_was_away_at_the_start_is_opened_later(
    postgres_url: URL, postgres: Any
) -> None:
    ledger = Ledger(postgres_url)
    postgres.stop()
    try:
        with pytest.raises(LedgerUnavailable), ledger.writing():
            pass
    finally:
        postgres.start()
    with ledger.writing() as session:
        lifecycle.submit(session, asked())
    assert known(ledger) == ["run-1"]
    ledger.dispose()
