"""Launches side by side: in order in their lane, past what hangs, closed where many hang."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from dagster_gpufair.engine.launch_threads import HANGS_AFTER, MOST_HANGING, LaunchThreads


class Launches:
    """Launches that go on until they are told to end, and a clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 0.0
        self.begun: list[str] = []
        self._changed = threading.Condition()
        self._ends: dict[str, threading.Event] = {}
        self._threads: dict[str, threading.Thread] = {}

    def put(self, lanes: LaunchThreads, lane: str, *run_ids: str) -> None:
        for run_id in run_ids:
            self._ends[run_id] = threading.Event()
            lanes.put(lane, run_id, lambda run_id=run_id: self._go_on(run_id))  # type: ignore[misc]

    def _go_on(self, run_id: str) -> None:
        with self._changed:
            self.begun.append(run_id)
            self._threads[run_id] = threading.current_thread()
            self._changed.notify_all()
        self._ends[run_id].wait(timeout=60)

    def end(self, *run_ids: str) -> None:
        """Let these return, and wait until their lanes know it."""
        for run_id in run_ids:
            self._ends[run_id].set()
            self._threads[run_id].join(timeout=60)

    def await_begun(self, *run_ids: str) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: set(run_ids) <= set(self.begun), timeout=60)

    def end_all(self) -> None:
        for end in self._ends.values():
            end.set()


@pytest.fixture
def launches() -> Iterator[Launches]:
    launches = Launches()
    yield launches
    launches.end_all()


def lanes_of(launches: Launches, width: int = 1) -> LaunchThreads:
    return LaunchThreads(width, clock=lambda: launches.now)


def look(lanes: LaunchThreads) -> None:
    """As every pass does, also when it has begun nothing."""
    list(lanes.wait((), 1.0))


def test_in_a_lane_one_after_the_other_and_lanes_side_by_side(launches: Launches) -> None:
    lanes = lanes_of(launches)
    launches.put(lanes, "a", "a1", "a2")
    launches.put(lanes, "b", "b1")
    launches.await_begun("a1", "b1")
    assert lanes.under_way() == {"a1", "a2", "b1"}
    assert "a2" not in launches.begun

    launches.end("a1")
    launches.await_begun("a2")
    launches.end("a2", "b1")
    assert lanes.under_way() == set()


def test_as_many_at_once_as_the_lane_is_wide(launches: Launches) -> None:
    lanes = lanes_of(launches, width=2)
    launches.put(lanes, "a", "a1", "a2", "a3")
    launches.await_begun("a1", "a2")

    assert "a3" not in launches.begun
    launches.end("a1")
    launches.await_begun("a3")


def test_what_hangs_no_longer_counts(launches: Launches) -> None:
    lanes = lanes_of(launches)
    launches.put(lanes, "a", "a1", "a2")
    launches.await_begun("a1")
    launches.now = HANGS_AFTER
    look(lanes)
    assert "a2" not in launches.begun

    launches.now += 1
    look(lanes)
    launches.await_begun("a2")
    assert lanes.closed() == {}


def test_a_lane_in_which_many_hang_is_closed_until_one_returns(launches: Launches) -> None:
    lanes = lanes_of(launches)
    hanging = [f"a{number}" for number in range(MOST_HANGING)]
    launches.put(lanes, "a", *hanging, "waits", "waits too")
    launches.put(lanes, "b", "b1", "b2")
    for run_id in hanging:
        launches.await_begun(run_id)
        assert lanes.closed() == {}
        launches.now += HANGS_AFTER + 1
        if run_id != hanging[-1]:
            look(lanes)

    assert lanes.closed() == {"a": MOST_HANGING}
    assert lanes.recall() == ["waits", "waits too"]
    assert lanes.recall() == []
    assert lanes.under_way() == {*hanging, "b1", "b2"}
    launches.put(lanes, "a", "later")
    assert "later" not in launches.begun

    launches.end(hanging[0])
    assert lanes.closed() == {}
    launches.await_begun("later")


def test_waiting_ends_with_the_time_or_the_launches(launches: Launches) -> None:
    lanes = lanes_of(launches)
    launches.put(lanes, "a", "a1")
    launches.put(lanes, "b", "b1")
    for _ in lanes.wait({"a1"}, 5.0):
        launches.now += 1
    assert launches.now == 5.0

    launches.end("b1")
    assert list(lanes.wait({"b1"}, 5.0)) == []


def test_a_launch_that_raises_leaves_its_lane_open(launches: Launches) -> None:
    lanes = lanes_of(launches)
    silent, threading.excepthook = threading.excepthook, lambda _: None
    try:
        lanes.put("a", "a1", lambda: 1 / 0)
        list(lanes.wait({"a1"}, 60))
    finally:
        threading.excepthook = silent
    launches.put(lanes, "a", "a2")
    launches.await_begun("a2")
