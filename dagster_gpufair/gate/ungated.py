"""GPU runs that run without a grant: counted until they end, so that nobody else is given their GPUs."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence

from dagster import DagsterRun, RunRecord

from dagster_gpufair.engine.book import Book
from dagster_gpufair.engine.policy_file import InForce
from dagster_gpufair.engine.writer_turn import Turn
from dagster_gpufair.gate.admission import Refusal, admit
from dagster_gpufair.gate.runs import submission_of
from dagster_gpufair.gate.tags import asks_for_gpus
from dagster_gpufair.ledger import leases
from dagster_gpufair.ledger.requests import RequestRecord
from dagster_gpufair.policy.quantities import format_gpus


class Ungated:
    """Looks for such runs pass by pass; remembers which cannot be counted, so as to say so once."""

    def __init__(self, turn: Turn, logger: logging.Logger):
        self._turn = turn
        self._logger = logger
        self._uncounted: dict[str, int] = {}
        """The policy version by which each cannot be counted."""

    def find(
        self,
        book: Book,
        unfinished: Collection[str],
        active: Sequence[RunRecord],
        in_force: InForce,
        now: float,
    ) -> None:
        """Count the active runs that use GPUs and have no lease."""
        asked, self._uncounted = self._uncounted, {}
        for found in active:
            run = found.dagster_run
            if run.run_id in book.leases or run.run_id not in unfinished:
                continue
            if not asks_for_gpus(run.tags):
                continue
            request = book.queued.get(run.run_id)
            if request is None and asked.get(run.run_id) != in_force.version:
                request = self._unasked(run, in_force, now)
            if request is None:
                self._uncounted[run.run_id] = in_force.version
            else:
                self._count(book, request, now)

    def _count(self, book: Book, request: RequestRecord, now: float) -> None:
        with self._turn.writing(now) as session:
            leases.ungated(session, request, request.pools[0], {}, now)
            lease = leases.of_run(session, request.run_id)[-1]
        book.granted(lease)
        self._logger.error(
            "Run %s of team %s uses %s × %s without a grant: it was not started by this queue. "
            "It is counted until it ends.",
            request.run_id,
            request.team,
            format_gpus(request.gpus),
            lease.pool,
        )

    def _unasked(self, run: DagsterRun, in_force: InForce, now: float) -> RequestRecord | None:
        """What a run would have asked for that never came by the queue."""
        submission = submission_of(run, now)
        request = admit(in_force.policy, submission)
        if isinstance(request, Refusal):
            self._logger.error(
                "Run %s uses GPUs without a grant and cannot be counted: %s",
                run.run_id,
                request.message,
            )
            return None
        return RequestRecord.of(
            request,
            job_name=submission.job_name,
            location=submission.location,
            policy_version=in_force.version,
        )
