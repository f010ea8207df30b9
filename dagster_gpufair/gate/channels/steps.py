"""Whether a run may be stopped at once, although only some of its steps have said so."""

from __future__ import annotations

from dagster import DagsterInstance

from dagster_gpufair.gate.channels.words import Heard


def may_stop_now(instance: DagsterInstance, run_id: str, heard: Heard) -> bool:
    """Whether everything of a run that is under way says that it is saved.

    Asks the event log if steps have said it one by one: for the few runs under notice that have.
    """
    if not heard.may_stop or not heard.steps:
        return heard.may_stop
    stats = instance.get_run_step_stats(run_id)
    going_on = {
        each.step_key
        for each in stats
        if each.status is not None and each.status.value == "IN_PROGRESS"
    }
    return going_on <= heard.steps
