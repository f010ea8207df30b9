"""What is over: leases and waiting requests whose runs have ended, or are gone."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from dagster import DagsterInstance

from dagster_gpufair.engine.book import Book
from dagster_gpufair.engine.writer_turn import Turn
from dagster_gpufair.gate.runs import records_of
from dagster_gpufair.ledger import leases, requests
from dagster_gpufair.ledger.connect import Ledger
from dagster_gpufair.ledger.leases import LeaseRecord

SWEEP_EVERY = 60.0
"""Seconds between two looks at the whole ledger for requests that nobody will ever end."""


class Ended(NamedTuple):
    """What is over since the last pass: leases and waiting requests (by run id), with how the run ended."""

    leases: Sequence[tuple[LeaseRecord, str]]
    requests: Sequence[tuple[str, str]]


class Ends:
    """Finds out pass by pass what is over, and brings it to the ledger and the book."""

    def __init__(self, instance: DagsterInstance, ledger: Ledger, turn: Turn):
        self._instance = instance
        self._ledger = ledger
        self._turn = turn
        self._swept_at = 0.0

    def close(self, book: Book, unfinished: set[str], now: float) -> Ended:
        """Release and cancel what is open in the book and whose runs are not among the unfinished."""
        cancelled, over = book.gone(unfinished)
        if not cancelled and not over:
            return Ended((), ())
        ended_as = self._how([*cancelled, *over])
        ended = Ended(
            [(book.leases[run_id], ended_as[run_id]) for run_id in over],
            [(run_id, ended_as[run_id]) for run_id in cancelled],
        )
        with self._turn.writing(now) as session:
            for lease, how in ended.leases:
                leases.release(session, lease.id, now, how)
            for how, ids in _by_end(ended.requests).items():
                requests.cancel(session, ids, now, how)
        for run_id in cancelled:
            book.leave(run_id)
        for run_id in over:
            book.released(run_id)
        return ended

    def sweep(self, book: Book, unfinished: Collection[str], now: float) -> None:
        """Now and then, cancel requests whose runs were over before the book ever heard of them."""
        if now - self._swept_at < SWEEP_EVERY:
            return
        self._swept_at = now
        with self._ledger.reading() as session:
            waiting = requests.waiting(session)
        # A request is written before its run is queued, so a young one may be ahead of what is known.
        ghosts = [
            request.id
            for request in waiting
            if request.id not in unfinished
            and request.id not in book.queued
            and now - request.submitted_at >= SWEEP_EVERY
        ]
        if ghosts:
            with self._turn.writing(now) as session:
                requests.cancel(session, ghosts, now, "ended before it was queued")

    def _how(self, run_ids: Sequence[str]) -> Mapping[str, str]:
        """How each run ended, in Dagster's word; one that is not there was deleted."""
        return dict.fromkeys(run_ids, "deleted") | {
            found.dagster_run.run_id: found.dagster_run.status.value.lower()
            for found in records_of(self._instance, run_ids)
        }


def _by_end(ended: Iterable[tuple[str, str]]) -> Mapping[str, list[str]]:
    by_end: dict[str, list[str]] = {}
    for run_id, how in ended:
        by_end.setdefault(how, []).append(run_id)
    return by_end
