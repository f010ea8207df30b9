"""Who is next: all that waits, in lines.

While a pass goes on, free GPUs only shrink and use only grows. So what cannot start now cannot start
later in the pass, and is asked once; and most requests only ever move back, so that it is enough to
look again at what comes up first. Two things move a request forward, and are seen to as they happen:
a start makes the part of the use that other sources hold smaller, and when a first choice is gone, an
ask goes on to its next.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from heapq import heappop, heappush
from itertools import count
from math import inf
from typing import NamedTuple

from dagster_gpufair.scheduling.accounts import Holding
from dagster_gpufair.scheduling.groups import Ask, Blocked, Group, Groups
from dagster_gpufair.scheduling.line import Line
from dagster_gpufair.scheduling.model import Class, Request
from dagster_gpufair.scheduling.order import Key
from dagster_gpufair.scheduling.snapshot import Snapshot


class Turn(NamedTuple):
    """The best request of all, and how many GPUs it would take in which account and pool."""

    group: Group
    line: Line

    @property
    def request(self) -> Request:
        return self.group.head

    @property
    def holding(self) -> Holding:
        return self.line.holding

    @property
    def gpus(self) -> int:
        return self.group.ask.choices[0][1]


class Queue:
    """All that waits. `next` says whose turn it is; `started` or `try_next` must answer it."""

    def __init__(
        self, snapshot: Snapshot, requests: Iterable[Request], blocked: Mapping[str, Blocked]
    ) -> None:
        self._snapshot = snapshot
        self._groups = Groups(snapshot, requests, blocked)
        self._numbers = count(1)
        self._lines: dict[Holding, list[Line | None]] = {}
        self._line_of: dict[Ask, Line | None] = {}
        self._changed: list[dict[Line, None]] = [{} for _ in Class]
        self._entries: list[tuple[Key, int, Group, Line]] = []
        self._started: dict[str, dict[str | None, int]] = defaultdict(dict)
        self._last_started: dict[str, int] = {}
        self._choosy: dict[str, dict[float, dict[Ask, None]]] = {
            pool: {} for pool in snapshot.rooms
        }
        for ask in self._groups.asks:
            self._settle(ask)

    def next(self) -> Turn | None:
        """The best of all that the rules allow to start; None if nothing is left."""
        while True:
            self._enter_changed()
            if not self._entries:
                return None
            _, number, group, line = self._entries[0]
            if number != line.entered:
                heappop(self._entries)
            elif number < self._last_started.get(line.holding.account.team, 0):
                self._change(line)
            elif group.ask.allowed_class() is not line.class_:
                self._settle(group.ask)
            else:
                return Turn(group, line)

    def try_next(self, turn: Turn) -> None:
        """It does not fit: whatever in its line does not fit now goes on to its next choice, or waits."""
        for ask in list(turn.line.asks):
            self._settle(ask)

    def started(self, turn: Turn) -> None:
        """It has started: what this takes from others, or gives them, is seen to."""
        source, line = turn.group.pop().source, turn.line
        if source is not None and source not in line.started:
            # From its first start in the pass on, the rest of the source waits since now.
            line.started[source] = next(self._numbers)
            self._last_started[line.holding.account.team] = line.started[source]
        line.add(turn.group)
        for other in self._lines_of(line.holding):
            self._change(other)
        self._recheck(line.holding)

    def waiting(self) -> Iterator[tuple[Ask, list[Group]]]:
        """What is left, by ask."""
        for ask in self._groups.asks:
            started = self._started.get(ask.sample.team)
            if started:
                self._groups.part(ask, started)
            groups = [group for group in ask.groups if group]
            if groups:
                yield ask, groups

    def _settle(self, ask: Ask) -> None:
        """Stand in the line of the first choice that can start now: pools by liking, then sizes."""
        while ask.choices:
            holding, gpus = ask.choices[0]
            choosy = self._choosy[holding.pool].setdefault(inf if ask.per_node else gpus, {})
            class_ = ask.allowed_class()
            if class_ is not None and self._snapshot.place(holding, gpus, ask.per_node) is not None:
                if len(ask.choices) > 1:
                    choosy[ask] = None
                self._stand(ask, self._line(holding, class_))
                return
            del ask.choices[0]
            choosy.pop(ask, None)
        self._stand(ask, None)

    def _stand(self, ask: Ask, line: Line | None) -> None:
        """Leave the line it stands in for another, or for good."""
        before = self._line_of.get(ask)
        if before is line:
            return
        self._line_of[ask] = line
        if before is not None:
            del before.asks[ask]
            self._change(before)
        if line is not None:
            line.asks[ask] = None
            self._change(line)
            for group in list(ask.groups):
                line.add(group)

    def _recheck(self, holding: Holding) -> None:
        """After a start, those with a further choice go on to it if their present one is gone."""
        room = self._snapshot.room(holding.pool)
        fits_anybody = min(room.surely_fits(), self._snapshot.free_for_anybody(holding.pool))
        too_large = [
            ask
            for gpus, choosy in self._choosy[holding.pool].items()
            if gpus > fits_anybody
            for ask in choosy
        ]
        against_the_rules = [
            ask
            for line in self._lines_of(holding)
            for ask in line.asks
            if len(ask.choices) > 1 and ask.allowed_class() is None
        ]
        for ask in too_large + against_the_rules:
            self._settle(ask)

    def _lines_of(self, holding: Holding) -> list[Line]:
        return [line for line in self._lines[holding] if line is not None and line.asks]

    def _line(self, holding: Holding, class_: Class) -> Line:
        lines = self._lines.get(holding)
        if lines is None:
            lines = self._lines[holding] = [None] * len(Class)
        line = lines[class_]
        if line is None:
            started = self._started[holding.account.team]
            line = Line(self._snapshot, self._groups, self._numbers, started, holding, class_)
            lines[class_] = line
        return line

    def _change(self, line: Line) -> None:
        """Another may be its best now; seen to when something of its class comes up."""
        self._changed[line.class_][line] = None

    def _enter_changed(self) -> None:
        """Let lines compete with their present best, as far down as the class of the best of all."""
        for class_, lines in enumerate(self._changed):
            for line in lines:
                line.entered = next(self._numbers)
                best = line.best()
                if best is not None:
                    key, group = best
                    heappush(self._entries, (key, line.entered, group, line))
            lines.clear()
            if self._entries and self._entries[0][0][0] <= class_:
                return
