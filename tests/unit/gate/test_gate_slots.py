"""GPU runs and others share Dagster's limits: higher priority first, then who was queued earlier."""

from __future__ import annotations

import math
from typing import Any

from dagster import DagsterRun

from dagster_gpufair.gate.queue.slots import Shared, share


class OneEach:
    """A limit that lets one run of each job start, instead of Dagster's counters."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def blocking(self, run: DagsterRun) -> str | None:
        return "one of the job runs" if run.job_name in self._taken else None

    def take(self, run: DagsterRun) -> None:
        self._taken.add(run.job_name)


class NoLimits(OneEach):
    def blocking(self, run: DagsterRun) -> str | None:
        return None


def run(name: str, priority: Any = None, job: str | None = None) -> DagsterRun:
    tags = {} if priority is None else {"dagster/priority": str(priority)}
    return DagsterRun(job_name=job or name, run_id=name, tags=tags)


def shared(
    gpu: list[DagsterRun], other: list[DagsterRun], slots: float, limits: Any = None
) -> Shared:
    """Names are their age: ``1`` was queued before ``2``."""
    position = {run.run_id: int(run.run_id) for run in [*gpu, *other]}
    return share(gpu, other, slots, limits or NoLimits(), position)


def ids(runs: list[DagsterRun]) -> list[str]:
    return [run.run_id for run in runs]


def test_without_a_limit_all_start() -> None:
    found = shared([run("3"), run("1")], [run("2")], math.inf)

    assert (ids(found.gpu), ids(found.other)) == (["3", "1"], ["2"])
    assert found.out_of_slots == [] and found.limited == {}


def test_the_older_goes_first() -> None:
    found = shared([run("2"), run("4")], [run("1"), run("3")], 3)

    assert (ids(found.gpu), ids(found.other)) == (["2"], ["1", "3"])
    assert found.out_of_slots == ["4"]


def test_the_higher_priority_goes_before_the_older() -> None:
    found = shared([run("4", priority=2)], [run("1"), run("2", priority=1)], 2)

    assert (ids(found.gpu), ids(found.other)) == (["4"], ["1"])


def test_the_order_inside_each_list_is_its_own() -> None:
    found = shared([run("9"), run("1", priority=5)], [run("5")], 2)

    assert ids(found.gpu) == ["9"], "the plan put it first, whatever its priority says"
    assert ids(found.other) == ["5"]


def test_a_limit_of_its_own_leaves_the_slot_to_the_next() -> None:
    gpu = [run("1", job="a"), run("2", job="a"), run("3", job="b")]

    found = shared(gpu, [run("4", job="a"), run("5", job="c")], 3, OneEach())

    assert (ids(found.gpu), ids(found.other)) == (["1", "3"], ["5"])
    assert found.limited == {"2": "one of the job runs"}
    assert found.out_of_slots == []


def test_no_slots_and_fewer_than_none() -> None:
    for slots in (0, -3):
        found = shared([run("1")], [run("2")], slots)
        assert (found.gpu, found.other, found.out_of_slots) == ([], [], ["1"])


def test_a_priority_that_is_no_number_counts_as_none() -> None:
    found = shared([run("2", priority="high")], [run("1")], 1)

    assert ids(found.other) == ["1"]
