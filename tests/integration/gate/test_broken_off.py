"""Grants and launches that break off in the middle, in a daemon that lives on."""

from __future__ import annotations

from typing import Any

import pytest
from gate_stage import Stage

from dagster_gpufair.engine.book import Book
from dagster_gpufair.gate.queue import gate as gate_module
from dagster_gpufair.gate.queue import launching
from dagster_gpufair.ledger import lifecycle
from dagster_gpufair.ledger.connect import LedgerUnavailable


def test_a_run_that_was_marked_and_not_launched_is_queued_again_and_launched(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database goes away after the mark, and the launch is not taken on: its transaction is undone."""
    gpu = stage.submit(team="red", pool="a100", gpus=8)
    mark_starting = launching.mark_starting

    def mark_and_break_off(*args: Any) -> None:
        monkeypatch.setattr(launching, "mark_starting", mark_starting)
        mark_starting(*args)
        raise LedgerUnavailable("gone")

    monkeypatch.setattr(launching, "mark_starting", mark_and_break_off)
    stage.pass_()
    assert stage.launched == []
    stage.pass_()

    assert stage.launched == [gpu]
    assert stage.history(gpu) == ["submitted", "granted", "recalled", "granted"]
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
    usual = gate_module.launch_granted

    def taken_on(instance: Any, context: Any, turn: Any, epoch: int, lease: Any) -> Any:
        monkeypatch.undo()
        with turn.writing() as session:
            assert lifecycle.claim(session, lease.id, epoch, turn.host, 1000.0)
        return usual(instance, context, turn, epoch, lease)

    monkeypatch.setattr(gate_module, "launch_granted", taken_on)
    stage.pass_()
    assert stage.launched == []
    stage.pass_()

    assert stage.launched == [gpu]
    stage.assert_nothing_lost()
