"""Runs that the book has not heard of: requests of the ledger's, runs without GPUs, or neither yet."""

from __future__ import annotations

from collections.abc import Iterable

from dagster import DagsterInstance, DagsterRun, DagsterRunStatus, RunRecord

from dagster_gpufair.engine.engine import Engine
from dagster_gpufair.engine.policy_file import InForce
from dagster_gpufair.engine.writer_turn import Overtaken
from dagster_gpufair.gate.holders.runs import records_of, submission_of
from dagster_gpufair.gate.submission.admission import Refusal
from dagster_gpufair.gate.submission.recording import record
from dagster_gpufair.gate.submission.refusing import refuse
from dagster_gpufair.gate.submission.tags import asks_for_gpus
from dagster_gpufair.ledger import requests
from dagster_gpufair.ledger.requests import RequestRecord

REFUSED_AGAIN_AFTER = 60.0
"""Seconds after which a run that was refused and not failed is not in the middle of its submission."""


class Arrivals:
    """Enters what is new in the book, and admits what the coordinator could not record."""

    def __init__(self, instance: DagsterInstance, engine: Engine):
        self._instance = instance
        self._engine = engine

    def meet(self, unfinished: Iterable[str], now: float) -> list[str]:
        """Look at the runs that the book has not heard of.

        Returns:
            The queued GPU runs that no policy could be asked about yet.

        Raises:
            Overtaken: if another daemon has granted one of them GPUs.
        """
        book, in_force = self._engine.book, self._engine.rules.in_force
        new = book.unknown(unfinished)
        if not new:
            return []
        with self._engine.ledger.reading() as session:
            known = requests.by_runs(session, new)
        if any(request.state == "granted" for request in known.values()):
            raise Overtaken("the ledger has grants that this daemon does not know")
        self._engine.enter([request for request in known.values() if request.state == "queued"])
        unadmitted = []
        strangers = [id_ for id_ in new if id_ not in known or known[id_].state == "refused"]
        for found in records_of(self._instance, strangers):
            run = found.dagster_run
            if run.run_id in known:
                self._refuse_again(run, known[run.run_id], now)
            elif not asks_for_gpus(run.tags):
                book.others.add(run.run_id)
            elif run.status != DagsterRunStatus.QUEUED:
                continue
            elif in_force is None:
                unadmitted.append(run.run_id)
            else:
                self._admit(found, in_force, now)
        return unadmitted

    def _refuse_again(self, run: DagsterRun, refused: RequestRecord, now: float) -> None:
        """Fail a run whose refusal was recorded, by somebody who died before acting on it."""
        assert refused.finished_at is not None
        queued = run.status == DagsterRunStatus.QUEUED
        submitting = run.status == DagsterRunStatus.NOT_STARTED
        if queued or (submitting and now - refused.finished_at >= REFUSED_AGAIN_AFTER):
            code, message = refused.refusal_code or "", refused.refusal_message or ""
            refuse(self._instance, run, Refusal(code, message))

    def _admit(self, found: RunRecord, in_force: InForce, now: float) -> None:
        """A queued run that the coordinator could not record, or that was queued without it."""
        run = found.dagster_run
        submission = submission_of(run, min(now, found.create_timestamp.timestamp()))
        with self._engine.turn.writing() as session:
            result = record(session, in_force, submission)
            stored = requests.by_ids(session, [run.run_id])
        if isinstance(result, Refusal):
            refuse(self._instance, run, result)
        else:
            self._engine.enter(list(stored.values()))
