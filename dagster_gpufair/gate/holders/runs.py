"""Dagster's runs as the gate needs them: many by their ids, and the facts that admission looks at."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dagster import DagsterInstance, DagsterRun, RunRecord, RunsFilter

from dagster_gpufair.gate.dagster_internals import location_of
from dagster_gpufair.gate.submission.admission import Submission
from dagster_gpufair.ledger.statements import chunks


def records_of(instance: DagsterInstance, run_ids: Iterable[str]) -> Iterator[RunRecord]:
    """Those of the runs that are there."""
    for piece in chunks(run_ids):
        yield from instance.get_run_records(RunsFilter(run_ids=list(piece)))


def submission_of(run: DagsterRun, at: float) -> Submission:
    """What a run asks for by itself, as if it had been submitted then."""
    return Submission(run.run_id, run.job_name, location_of(run), run.tags, at)
