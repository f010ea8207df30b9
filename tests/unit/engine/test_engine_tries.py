"""What is to be done is tried with growing pauses, in threads of its own; what hangs holds up no other."""

from __future__ import annotations

import threading

from lease_samples import lease

from dagster_gpufair.engine.tries import FIRST_PAUSE, LONGEST_PAUSE, MOST_HANGING, Tries
from dagster_gpufair.ledger.leases import LeaseRecord


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Holder:
    """What is told to stop; hangs while it is not let go."""

    def __init__(self) -> None:
        self.tries: list[int] = []
        self._changed = threading.Condition()
        self._let_go = threading.Event()
        self.hangs: set[int] = set()

    def stop(self, held: LeaseRecord) -> None:
        with self._changed:
            self.tries.append(held.id)
            self._changed.notify_all()
        if held.id in self.hangs:
            self._let_go.wait(timeout=60)

    def await_tries(self, id_: int, times: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.tries.count(id_) >= times, timeout=60)

    def let_go(self) -> None:
        self._let_go.set()


def try_all(stops: Tries[int, LeaseRecord], holder: Holder, *stopping: LeaseRecord) -> list[int]:
    """Make the tries that are due, and wait until they have begun; of which leases they are."""
    tried = stops.due({each.id: each for each in stopping})
    for id_, each in tried.items():
        before = holder.tries.count(id_)
        stops.try_(id_, each, before=each.stop_tries)
        holder.await_tries(id_, before + 1)
    return list(tried)


def test_pauses_grow_and_have_a_limit() -> None:
    clock, holder = Clock(), Holder()
    stops = Tries("stop", holder.stop, clock)
    pauses, last = [], 0.0

    while len(pauses) < 9:
        if try_all(stops, holder, lease(1)):
            pauses.append(clock.now - last)
            last = clock.now
        clock.now += FIRST_PAUSE

    assert pauses[1:5] == [FIRST_PAUSE, 2 * FIRST_PAUSE, 4 * FIRST_PAUSE, 8 * FIRST_PAUSE]
    assert pauses[-1] == LONGEST_PAUSE


def test_a_stop_that_hangs_is_tried_again_a_few_times_and_holds_up_no_other() -> None:
    clock, holder = Clock(), Holder()
    holder.hangs = {1}
    stops = Tries("stop", holder.stop, clock)

    for _ in range(MOST_HANGING):
        assert try_all(stops, holder, lease(1), lease(2)) == [1, 2]
        clock.now += LONGEST_PAUSE
    assert try_all(stops, holder, lease(1), lease(2)) == [2]
    holder.let_go()


def test_tries_of_an_earlier_daemon_count() -> None:
    clock, holder = Clock(), Holder()
    stops = Tries("stop", holder.stop, clock)
    tried_before = lease(1, stop_tries=4)

    assert try_all(stops, holder, tried_before) == [1]
    clock.now += 15 * FIRST_PAUSE
    assert try_all(stops, holder, tried_before) == []
    clock.now += FIRST_PAUSE
    assert try_all(stops, holder, tried_before) == [1]


def test_what_is_gone_is_forgotten() -> None:
    clock, holder = Clock(), Holder()
    stops = Tries("stop", holder.stop, clock)

    assert try_all(stops, holder, lease(1)) == [1]
    assert try_all(stops, holder) == []
    assert try_all(stops, holder, lease(1)) == [1]
