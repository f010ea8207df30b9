"""Failing a run that can never start, so that its page says why and nothing tries it again."""

from __future__ import annotations

from dagster import DagsterInstance, DagsterRun

from dagster_gpufair.gate.dagster_internals import MAX_RETRIES_TAG
from dagster_gpufair.gate.submission.admission import Refusal
from dagster_gpufair.gate.submission.tags import state_tags


def refuse(instance: DagsterInstance, run: DagsterRun, refusal: Refusal) -> DagsterRun:
    """Fail the run with the refusal as its message.

    Not raised: Dagster would lose the message, and end the backfill or tick that submitted the run.
    While it is failed it has no retries, since whether to retry is settled at that moment.
    """
    tags = state_tags("refused", refusal.code, refusal.message)
    if instance.run_retries_enabled:
        tags[MAX_RETRIES_TAG] = "0"
    instance.add_run_tags(run.run_id, tags)
    instance.report_run_failed(run, str(refusal))
    if instance.run_retries_enabled:
        before = run.tags.get(MAX_RETRIES_TAG, str(instance.run_retries_max_retries))
        instance.add_run_tags(run.run_id, {MAX_RETRIES_TAG: before})
    failed = instance.get_run_by_id(run.run_id)
    assert failed is not None
    return failed
