"""Launching runs side by side, so that a launch that hangs holds up no other.

Each code location is a lane. In a lane runs are launched one after the other, in order; a launch that
takes longer than `HANGS_AFTER` no longer counts, and the lane goes on with another thread, until
`MOST_HANGING` of its launches hang: then the lane is closed until one of them returns.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

HANGS_AFTER = 10.0
"""Seconds."""
MOST_HANGING = 4


@dataclass
class _Launch:
    id_: str
    work: Callable[[], None]
    began: float | None = None


@dataclass
class _Lane:
    waiting: deque[_Launch] = field(default_factory=deque)
    running: list[_Launch] = field(default_factory=list)


class LaunchThreads:
    """Threads that launch runs, one lane for each code location.

    ``width`` is how many launches of a lane go on at once while none hangs. The work handed in must
    not raise: what it has to say, it records itself.
    """

    def __init__(self, width: int = 1, clock: Callable[[], float] = time.monotonic):
        self._width = width
        self._clock = clock
        self._lanes: dict[str, _Lane] = {}
        self._changed = threading.Condition()

    def put(self, lane: str, id_: str, work: Callable[[], None]) -> None:
        """Launch a run once those before it in its lane are under way."""
        with self._changed:
            self._lanes.setdefault(lane, _Lane()).waiting.append(_Launch(id_, work))
            self._staff(lane)

    def under_way(self) -> set[str]:
        """The runs handed in whose launch has not returned yet."""
        with self._changed:
            return {
                launch.id_
                for lane in self._lanes.values()
                for launch in (*lane.waiting, *lane.running)
            }

    def closed(self) -> dict[str, int]:
        """The lanes in which so many launches hang that no more are begun, and how many."""
        with self._changed:
            hanging = {name: self._hanging(lane) for name, lane in self._lanes.items()}
        return {name: count for name, count in hanging.items() if count >= MOST_HANGING}

    def recall(self) -> list[str]:
        """Take back what waits in closed lanes; the runs whose launch is not begun."""
        with self._changed:
            closed = [lane for lane in self._lanes.values() if self._hanging(lane) >= MOST_HANGING]
            recalled = [launch.id_ for lane in closed for launch in lane.waiting]
            for lane in closed:
                lane.waiting.clear()
        return recalled

    def wait(self, ids: Collection[str], patience: float) -> Iterator[None]:
        """Yield from time to time until the runs' launches have returned.

        It ends before that when none of them returns for ``patience`` seconds.
        """
        left, since = len(ids), self._clock()
        while True:
            with self._changed:
                for name in self._lanes:
                    self._staff(name)
                if left > (left := self._pending(ids)):
                    since = self._clock()
                if not left or self._clock() - since >= patience:
                    return
                self._changed.wait(timeout=0.25)
            yield None

    def _pending(self, ids: Collection[str]) -> int:
        return sum(
            launch.id_ in ids
            for lane in self._lanes.values()
            for launch in (*lane.waiting, *lane.running)
        )

    def _hanging(self, lane: _Lane) -> int:
        now = self._clock()
        return sum(
            launch.began is not None and now - launch.began > HANGS_AFTER for launch in lane.running
        )

    def _staff(self, name: str) -> None:
        lane = self._lanes[name]
        hanging = self._hanging(lane)
        if hanging >= MOST_HANGING:
            return
        while lane.waiting and len(lane.running) - hanging < self._width:
            launch = lane.waiting.popleft()
            launch.began = self._clock()
            lane.running.append(launch)
            # A daemon thread: a launch that never returns must not keep the process from ending.
            thread = threading.Thread(
                target=self._work, args=(name, launch), name=f"gpufair-launch-{name}", daemon=True
            )
            try:
                thread.start()
            except RuntimeError:
                # This machine has no thread left: it is the next again.
                lane.running.remove(launch)
                launch.began = None
                lane.waiting.appendleft(launch)
                return

    def _work(self, name: str, launch: _Launch) -> None:
        try:
            launch.work()
        finally:
            with self._changed:
                self._lanes[name].running.remove(launch)
                self._staff(name)
                if not self._lanes[name].running and not self._lanes[name].waiting:
                    del self._lanes[name]
                self._changed.notify_all()
