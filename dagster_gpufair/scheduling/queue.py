"""Who is next: the lines in which groups of requests stand.

A `Line` is the groups that would start in one account, pool and class. Among them only the score
decides; between lines, class and saturation do.

While a pass goes on, free GPUs only shrink and use only grows. So what cannot start now cannot start
later in the pass, and is asked once; and most requests only ever move back, so that it is enough to
look again at what comes up first. Two things move a request forward, and are seen to as they happen:
a start makes the part of the use that other sources hold smaller, and when a first choice is gone, an
ask goes on to its next.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from heapq import heappop, heappush
from itertools import count
from typing import NamedTuple

from dagster_gpufair.scheduling.accounts import Holding
from dagster_gpufair.scheduling.groups import Ask, Blocked, Group, Groups
from dagster_gpufair.scheduling.model import Class, Request
from dagster_gpufair.scheduling.order import counted_saturation
from dagster_gpufair.scheduling.snapshot import Snapshot

Entry = tuple[float, float, str, int, Group]
"""In a line: the score without the points for the source (negative), submission, id, number, group.

Numbers grow: what was entered before something happened is known by its smaller number.
"""


class Line:
    """Groups of one account in one pool and class, their best on top, apart by source.

    ``number`` is that of its valid entry among all lines.
    """

    def __init__(self, holding: Holding, class_: Class) -> None:
        self.holding = holding
        self.class_ = class_
        self.asks: dict[Ask, None] = {}
        self.by_source: dict[str | None, list[Entry]] = {}
        self.number = 0


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
        self._lines: dict[tuple[int, Class], Line] = {}
        self._line_of: dict[Ask, Line | None] = {}
        self._changed: dict[Line, None] = {}
        self._first: list[tuple[Class, float, float, float, str, int, Group, Line]] = []
        self._choosy: dict[str, dict[Ask, None]] = {pool: {} for pool in snapshot.rooms}
        self._source_started: dict[tuple[str, str | None], int] = {}
        self._any_source_started: dict[str, int] = {}
        for ask in self._groups.asks:
            self._settle(ask)

    def next(self) -> Turn | None:
        """The best of all that the rules allow to start; None if nothing is left."""
        while True:
            for line in self._changed:
                self._enter(line)
            self._changed.clear()
            if not self._first:
                return None
            *_, number, group, line = self._first[0]
            if number != line.number:
                heappop(self._first)
            elif number < self._any_source_started.get(line.holding.account.team, 0):
                self._changed[line] = None
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
        request = turn.group.pop()
        if request.source is not None:
            self._source_starts(request.team, request.source)
        self._add(turn.line, turn.group)
        for class_ in Class:
            line = self._lines.get((id(turn.holding), class_))
            if line is not None:
                self._changed[line] = None
        self._recheck(turn.holding)

    def _source_starts(self, team: str, source: str) -> None:
        """From its first start in the pass on, the rest of the source waits since now."""
        if (team, source) not in self._source_started:
            number = next(self._numbers)
            self._source_started[team, source] = number
            self._any_source_started[team] = number

    def waiting(self) -> Iterator[tuple[Ask, list[Group]]]:
        """What is left, by ask."""
        for ask in self._groups.asks:
            if ask.sample.team in self._any_source_started:
                for group in list(ask.groups):
                    self._part(group)
            groups = [group for group in ask.groups if group]
            if groups:
                yield ask, groups

    def _settle(self, ask: Ask) -> None:
        """Stand in the line of the first choice that can start now: pools by liking, then sizes."""
        while ask.choices:
            holding, gpus = ask.choices[0]
            class_ = ask.allowed_class()
            if class_ is not None and self._snapshot.place(holding, gpus, ask.per_node) is not None:
                if len(ask.choices) > 1:
                    self._choosy[holding.pool][ask] = None
                self._stand(ask, self._line(holding, class_))
                return
            del ask.choices[0]
            self._choosy[holding.pool].pop(ask, None)
        self._stand(ask, None)

    def _stand(self, ask: Ask, line: Line | None) -> None:
        """Leave the line it stands in for another, or for good."""
        before = self._line_of.get(ask)
        if before is line:
            return
        self._line_of[ask] = line
        if before is not None:
            del before.asks[ask]
            self._changed[before] = None
        if line is not None:
            line.asks[ask] = None
            self._changed[line] = None
            for group in list(ask.groups):
                self._add(line, group)

    def _recheck(self, holding: Holding) -> None:
        """After a start, those with a further choice go on to it if their present one is gone."""
        choosy = self._choosy[holding.pool]
        if not choosy:
            return
        room = self._snapshot.room(holding.pool)
        fits_anybody = min(room.surely_fits(), self._snapshot.free_for_anybody(holding.pool))
        for ask in list(choosy):
            its, gpus = ask.choices[0]
            if gpus > fits_anybody or its is holding or ask.per_node:
                self._settle(ask)

    def _line(self, holding: Holding, class_: Class) -> Line:
        line = self._lines.get((id(holding), class_))
        if line is None:
            line = self._lines[id(holding), class_] = Line(holding, class_)
        return line

    def _enter(self, line: Line) -> None:
        """Let the line compete with its present best, the points for sources as they are now."""
        if not line.asks:
            line.by_source.clear()
        # First those of many sources: what has outgrown them joins its own source's.
        self._tidy(line, line.by_source.get(None, []))
        best = None
        for source, entries in line.by_source.items():
            self._tidy(line, entries)
            if entries:
                minus_score, submitted, id_, _, group = entries[0]
                minus_score -= self._snapshot.order.source_points(source, line.holding)
                if best is None or (minus_score, submitted, id_) < best[:3]:
                    best = (minus_score, submitted, id_, group)
        line.number = next(self._numbers)
        if best is not None:
            *key, group = best
            saturation = counted_saturation(line.class_, line.holding.saturation)
            heappush(self._first, (line.class_, saturation, *key, line.number, group, line))

    def _tidy(self, line: Line, entries: list[Entry]) -> None:
        """Leave an entry on top that is up to date."""
        while entries:
            _, _, id_, number, group = entries[0]
            if self._line_of[group.ask] is line and group and group.head.id == id_:
                head = group.head
                if number > self._source_started.get((head.team, head.source), 0):
                    return
                heappop(entries)
                self._add(line, group)
            else:
                heappop(entries)

    def _add(self, line: Line, group: Group) -> None:
        """Put a group in the line, by its first request that is still like the rest of it."""
        while group and self._outgrew(group, group.head):
            own = self._groups.of_its_source(group, group.head)
            was_empty = not own
            own.requests.append(group.pop())
            if was_empty:
                self._push(line, own)
        if group:
            self._push(line, group)

    def _push(self, line: Line, group: Group) -> None:
        snapshot, head = self._snapshot, group.head
        points = snapshot.order.points(head, line.holding, snapshot.ageing(head))
        entry = (-points.score, head.submitted, head.id, next(self._numbers), group)
        line_of_source = line.by_source.setdefault(group.source, [])
        heappush(line_of_source, entry)

    def _outgrew(self, group: Group, request: Request) -> bool:
        """Whether its source made no difference when the pass began, and does now."""
        return group.source is None and (request.team, request.source) in self._source_started

    def _part(self, group: Group) -> None:
        """Leave in the group only what is still like the rest of it."""
        requests = group.waiting()
        outgrown = [request for request in requests if self._outgrew(group, request)]
        if outgrown:
            group.keep([request for request in requests if not self._outgrew(group, request)])
            for request in outgrown:
                self._groups.of_its_source(group, request).requests.append(request)
