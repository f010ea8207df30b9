"""Grants and launches that break off in the middle, in a daemon that lives on."""

from __future__ import annotations

from typing import Any

import pytest
from gate_stage import Stage

from dagster_gpufair.engine.book import Book
from dagster_gpufair.gate import daemon as daemon_module
from dagster_gpufair.gate import launching
from dagster_gpufair.ledger import leases
from dagster_gpufair.ledger.connect import LedgerUnavailable


def test_a_run_that_was_marked_and_not_launched_is_queued_again_and_launched(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database goes away after the mark; to take it back fails as well, at first."""
    gpu = stage.submit(team="red", pool="a100", gpus=8)
    mark_starting, settle = launching.mark_starting, daemon_module.settle
    failures = ["in the launch", "in the next pass"]

    def mark_and_break_off(*args: Any) -> None:
        monkeypatch.setattr(launching, "mark_starting", mark_starting)
        mark_starting(*args)
        raise LedgerUnavailable("gone")

    def fail_at_first(*args: Any) -> bool:
        if failures:
            raise LedgerUnavailable(failures.pop(0))
        return settle(*args)

    monkeypatch.setattr(launching, "mark_starting", mark_and_break_off)
    monkeypatch.setattr(daemon_module, "settle", fail_at_first)

    stage.pass_()
    assert stage.status(gpu) == "STARTING"
    assert stage.launched == []
    (error,) = stage.troubled_pass()
    assert "in the next pass" in error
    stage.pass_()

    assert stage.launched == [gpu]
    assert stage.history(gpu) == ["submitted", "granted", "requeued", "granted"]
    stage.finish_all()
    stage.assert_nothing_lost()


def test_grants_that_were_written_although_the_database_did_not_say_so(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection broke in the commit."""
    stage.pass_()
    gpu = stage.submit(team="red", pool="a100", gpus=8)
    usual = Book.granted

    def break_off(*_: Any) -> None:
        monkeypatch.setattr(Book, "granted", usual)
        raise LedgerUnavailable("the connection was closed")

    monkeypatch.setattr(Book, "granted", break_off)
    (error,) = stage.troubled_pass()
    assert "the connection was closed" in error
    assert stage.holders() == {gpu}
    assert stage.launched == []
    stage.pass_()

    assert stage.launched == [gpu]
    assert stage.history(gpu) == ["submitted", "granted"]
    stage.assert_nothing_lost()


def test_a_launch_that_was_taken_on_and_never_made_is_made(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = stage.submit(team="red", pool="a100", gpus=8)
    usual = daemon_module.launch_granted

    def taken_on(
        instance: Any, context: Any, ledger: Any, lease: Any, epoch: int, word: Any
    ) -> Any:
        monkeypatch.undo()
        with ledger.writing() as session:
            assert leases.claim_launch(session, lease.id, epoch)
        return usual(instance, context, ledger, lease, epoch, word)

    monkeypatch.setattr(daemon_module, "launch_granted", taken_on)
    stage.pass_()
    assert stage.launched == []
    stage.pass_()

    assert stage.launched == [gpu]
    stage.assert_nothing_lost()
