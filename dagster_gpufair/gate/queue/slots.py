"""Dagster's own limits for GPU runs: runs at once, tag limits, op pools.

GPU runs and other runs share them: the one with the higher ``dagster/priority`` comes first, then the
one that was queued earlier.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dagster import DagsterRun

from dagster_gpufair.gate.dagster_internals import RunLimits
from dagster_gpufair.gate.submission.admission import priority_of


@dataclass
class Shared:
    """Who may start under Dagster's limits, and which limit keeps the others."""

    gpu: list[DagsterRun] = field(default_factory=list)
    other: list[DagsterRun] = field(default_factory=list)
    limited: dict[str, str] = field(default_factory=dict)
    """GPU runs that a limit of their own tags or pools blocks: others may go in their place."""
    out_of_slots: list[str] = field(default_factory=list)
    """GPU runs for which the instance runs too many already."""


def share(
    gpu: Sequence[DagsterRun],
    other: Sequence[DagsterRun],
    free_slots: float,
    limits: RunLimits,
    position: Mapping[str, int],
) -> Shared:
    """Walk both lists, each in its own order, and take what the limits allow.

    Args:
        free_slots: how many more runs the instance may run; infinite without a limit.
        position: each run's place in Dagster's queue, oldest first.
    """
    shared = Shared()
    is_gpu = {run.run_id for run in gpu}

    def order(run: DagsterRun) -> tuple[int, int]:
        return (-priority_of(run.tags), position.get(run.run_id, 0))

    # A merge of the two heads: the order inside each list is its own and stays.
    for run in heapq.merge(gpu, other, key=order):
        ours = run.run_id in is_gpu
        if len(shared.gpu) + len(shared.other) >= free_slots:
            if ours:
                shared.out_of_slots.append(run.run_id)
            continue
        why = limits.blocking(run)
        if why is None:
            limits.take(run)
            (shared.gpu if ours else shared.other).append(run)
        elif ours:
            shared.limited[run.run_id] = why
    return shared
