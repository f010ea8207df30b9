"""Which runs a pass starts: the plan's, as far as Dagster's own limits let them, beside all others.

A run that one of Dagster's limits blocks, or that is not in Dagster's queue, does not keep its GPUs from
the next: the plan is made again without it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dagster import DagsterInstance, DagsterRun, DagsterRunStatus, RunRecord, RunsFilter

from dagster_gpufair.engine.engine import Engine
from dagster_gpufair.gate.dagster_internals import ConcurrencyConfig, RunLimits
from dagster_gpufair.gate.queue.slots import share
from dagster_gpufair.scheduling.model import Plan, Start

MOST_ROUNDS = 8
"""Plans made at most in one pass; what is blocked stays blocked, so the next pass goes on from there."""
RUN_LIMIT = "run_limit"
NOT_IN_QUEUE = ("environment", "It was submitted, but it is not in Dagster's queue.")
"""So it is between the two steps of a submission, and for good if the submitter died there."""


@dataclass(frozen=True)
class Picked:
    """What starts, and what is known of the rest. ``runs`` are those that start, by request id."""

    plan: Plan | None
    starts: Sequence[Start]
    runs: Mapping[str, DagsterRun]
    others: Sequence[DagsterRun]
    blocked: Mapping[str, tuple[str, str]]
    """GPU requests that something outside the plan keeps from starting, with reason and sentence."""
    foreign: Sequence[DagsterRun] = ()
    """GPU runs that may never start: their code is not that of the location whose name they bear."""


class Picker:
    """Picks runs pass by pass; remembers which GPU runs could not start though the plan had them."""

    def __init__(self) -> None:
        self._limited: dict[str, DagsterRun] = {}
        self._absent: set[str] = set()

    def pick(
        self,
        instance: DagsterInstance,
        engine: Engine,
        limits: ConcurrencyConfig,
        in_progress: Sequence[RunRecord],
        unfinished: Sequence[str],
        others: Sequence[DagsterRun],
        blocked: Mapping[str, tuple[str, str]],
        is_foreign: Callable[[DagsterRun], bool],
        now: float,
    ) -> Picked:
        """One pass's choice.

        Args:
            unfinished: the ids of all unfinished runs, oldest first.
            others: the runs without GPUs that Dagster's own rules would start.
            blocked: what is known to be broken, with reason and sentence.
        """
        if engine.rules.in_force is None or not engine.book.queued:
            return Picked(None, (), {}, others, blocked)
        pools_read: dict[str, Any] = {}
        blocked = {
            **blocked,
            **self._still_limited(instance, engine, limits, in_progress, pools_read),
            **self._still_absent(instance, engine),
        }
        queue = limits.run_queue_config
        assert queue is not None
        most = queue.max_concurrent_runs
        out_of_slots = (
            f"This Dagster instance runs {most} runs at once, and no more (max_concurrent_runs)."
        )
        foreign: dict[str, DagsterRun] = {}
        free_slots = math.inf if most == -1 else most - len(in_progress)
        for round_ in range(MOST_ROUNDS):
            plan = engine.plan(blocked, now)
            runs = _queued_bodies(instance, engine, [start.request.id for start in plan.starts])
            foreign |= {id_: run for id_, run in runs.items() if is_foreign(run)}
            runs = {id_: run for id_, run in runs.items() if id_ not in foreign}
            gpu = [runs[start.request.id] for start in plan.starts if start.request.id in runs]
            absent = [
                start.request.id
                for start in plan.starts
                if start.request.id not in runs and start.request.id not in foreign
            ]
            if not gpu and not absent:
                return Picked(plan, (), {}, others, blocked, list(foreign.values()))
            position = {run_id: place for place, run_id in enumerate(unfinished)}
            counted = RunLimits(instance, limits, in_progress, [*gpu, *others], pools_read)
            shared = share(gpu, others, free_slots, counted, position)
            of_run = {run.run_id: id_ for id_, run in runs.items()}
            limited = {of_run[run_id]: why for run_id, why in shared.limited.items()}
            self._limited |= {id_: runs[id_] for id_ in limited}
            self._absent |= set(absent)
            blocked |= {id_: (RUN_LIMIT, why) for id_, why in limited.items()}
            blocked |= dict.fromkeys(absent, NOT_IN_QUEUE)
            no_slot = [of_run[run_id] for run_id in shared.out_of_slots]
            blocked |= dict.fromkeys(no_slot, (RUN_LIMIT, out_of_slots))
            again = shared.limited or shared.out_of_slots or absent
            if not again or round_ == MOST_ROUNDS - 1:
                break
        taken = {of_run[run.run_id] for run in shared.gpu}
        starts = [start for start in plan.starts if start.request.id in taken]
        return Picked(plan, starts, runs, shared.other, blocked, list(foreign.values()))

    def _still_limited(
        self,
        instance: DagsterInstance,
        engine: Engine,
        limits: ConcurrencyConfig,
        in_progress: Sequence[RunRecord],
        pools_read: dict[str, Any],
    ) -> dict[str, tuple[str, str]]:
        """Of the runs that were blocked before, those that still are with nothing else started."""
        waiting = {id_: run for id_, run in self._limited.items() if id_ in engine.book.queued}
        counted = RunLimits(instance, limits, in_progress, list(waiting.values()), pools_read)
        why = {id_: counted.blocking(run) for id_, run in waiting.items()}
        self._limited = {id_: run for id_, run in waiting.items() if why[id_] is not None}
        return {id_: (RUN_LIMIT, said) for id_, said in why.items() if said is not None}

    def _still_absent(
        self, instance: DagsterInstance, engine: Engine
    ) -> dict[str, tuple[str, str]]:
        """Of the runs that were not in Dagster's queue, those that still are not."""
        self._absent &= engine.book.queued.keys()
        self._absent -= _queued_bodies(instance, engine, self._absent).keys()
        return dict.fromkeys(self._absent, NOT_IN_QUEUE)


def _queued_bodies(
    instance: DagsterInstance, engine: Engine, request_ids: Collection[str]
) -> dict[str, DagsterRun]:
    """By request id, the runs that are in Dagster's queue."""
    if not request_ids:
        return {}
    of_run = {engine.book.run_of(id_): id_ for id_ in request_ids}
    found = instance.get_runs(RunsFilter(run_ids=list(of_run), statuses=[DagsterRunStatus.QUEUED]))
    return {of_run[run.run_id]: run for run in found}
