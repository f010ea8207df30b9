"""Writing tags on a run that other processes write at the same time.

Dagster writes a run as a whole: whoever read it before these tags were written, and writes it after, takes
them away again.
"""

from __future__ import annotations

from collections.abc import Mapping

from dagster import DagsterInstance, DagsterRun

_TRIES = 4


def write_tags(
    instance: DagsterInstance, run_id: str, tags: Mapping[str, str]
) -> DagsterRun | None:
    """Write tags on a run until they are there; the run with them, or None if it is gone."""
    for _ in range(_TRIES):
        run = instance.get_run_by_id(run_id)
        if run is None or tags.items() <= run.tags.items():
            return run
        instance.add_run_tags(run_id, tags)
    return instance.get_run_by_id(run_id)
