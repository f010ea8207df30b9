"""Who is next: all that waits, in lines.

While a pass goes on, free GPUs only shrink and use only grows. So what cannot start now cannot start
later in the pass, and is asked once; and most requests only ever move back, so that it is enough to
look again at what comes up first. Two things move a request forward, and are seen to as they happen:
a start makes the part of the use that other sources hold smaller, and when a first choice is gone, an
ask goes on to its next.

What cannot start at all still has its turn if it may preempt or reserve: it stands by the best class
of its choices.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from heapq import heappop, heappush
from itertools import count
from math import inf
from typing import NamedTuple

from dagster_gpufair.scheduling.accounts.asker import Asker
from dagster_gpufair.scheduling.accounts.holding import Holding
from dagster_gpufair.scheduling.calendar.kept import Kept
from dagster_gpufair.scheduling.model import Blocked, Class, Request
from dagster_gpufair.scheduling.order import Key
from dagster_gpufair.scheduling.queue.groups import Ask, Choice, Group, Groups
from dagster_gpufair.scheduling.queue.line import Line
from dagster_gpufair.scheduling.snapshot import Snapshot


class Turn(NamedTuple):
    """The best request of all, as it asks for GPUs.

    If it ``is_stuck``, it cannot start now. If it ``secures``, what it stands by is kept for it, and it
    starts when it comes up as a borrower, with more or elsewhere.
    """

    group: Group
    line: Line
    is_stuck: bool

    @property
    def request(self) -> Request:
        return self.group.head

    @property
    def asker(self) -> Asker:
        return self.as_asker(self.group.ask.standing)

    def as_asker(self, choice: Choice) -> Asker:
        """As it asks for one of its choices; if it is stuck, as it will."""
        ask = self.group.ask
        asker = ask.in_the_end(choice) if self.is_stuck else ask.asker(choice)
        return asker._replace(request=self.group.head)

    @property
    def secures(self) -> bool:
        return not self.is_stuck and self.group.ask.secures is not None

    @property
    def first(self) -> Asker:
        """As it asks for the first of its choices."""
        return self.as_asker(self.group.ask.choices[0])

    def allowed(self) -> list[Asker]:
        """All choices in which only space is missing, in order of liking."""
        return [asker for asker in self.wanted() if self.group.ask.allows(asker)]

    def wanted(self) -> list[Asker]:
        """All its choices, in order of liking."""
        return [self.as_asker(choice) for choice in self.group.ask.wanted]


class Queue:
    """All that waits. `next` says whose turn it is; one of the methods after it must answer it."""

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
        self._aside: list[Group] = []
        self._choosy: dict[str, dict[float, dict[Ask, None]]] = {
            pool: {} for pool in snapshot.rooms
        }
        for ask in self._groups.asks:
            self._settle(ask)

    @property
    def asks(self) -> Iterable[Ask]:
        """All that is asked."""
        return self._groups.asks

    def next(self) -> Turn | None:
        """The best of all that the rules allow to start; None if nothing is left."""
        while True:
            self._enter_changed()
            if not self._entries:
                self._put_back()
                return None
            _, number, group, line = self._entries[0]
            if number != line.entered:
                heappop(self._entries)
            elif number < self._last_started.get(line.holding.account.team, 0):
                self._change(line)
            elif not self._stands_rightly(group.ask, line):
                # Where it has no business any more, the rest of its line mostly has none either.
                for ask in list(line.asks):
                    if not self._stands_rightly(ask, line):
                        self._settle(ask)
            else:
                return Turn(group, line, is_stuck=not group.ask.choices)

    def try_next(self, turn: Turn) -> None:
        """It does not fit: it goes on to its next choice."""
        self._drop_choice(turn.group.ask)
        self._settle(turn.group.ask)

    def secured(self, turn: Turn, kept: Kept) -> None:
        """What its quota covers is kept for it: it stands alone from now on, by its first choice."""
        alone = self._groups.alone(turn.group, kept)
        turn.line.add(turn.group)
        for line in (turn.line, *self._lines_of(kept.holding)):
            self._change(line)
        self._kept_in(kept.holding.pool)
        self._settle(alone)

    def secures_not(self, turn: Turn) -> None:
        """What it stands by is not to be had: it goes on without that choice."""
        ask = turn.group.ask
        assert ask.secures is not None
        ask.choices.remove(ask.secures)
        self._settle(ask)

    def pass_over(self, turn: Turn) -> None:
        """It cannot start and makes room for nothing: it waits."""
        turn.group.ask.stuck = None
        self._stand(turn.group.ask, None)

    def promised(self, turn: Turn, asker: Asker, awaits: bool) -> None:
        """It waits for its victims to leave, and stands in no line until then; or for a person."""
        if awaits:
            turn.group.set_aside()
            self._aside.append(turn.group)
        else:
            turn.group.pop()
        turn.line.add(turn.group)
        for line in (turn.line, *self._lines_of(asker.holding)):
            self._change(line)
        self._kept_in(asker.pool)

    def reserved(self, turn: Turn, pool: str) -> None:
        """It waits with a reservation: what no longer fits in that pool goes on to its next choice."""
        turn.group.set_aside()
        self._aside.append(turn.group)
        turn.line.add(turn.group)
        self._change(turn.line)
        self._kept_in(pool)

    def freed(self, kept: Kept) -> None:
        """What was kept for one that started elsewhere is there for all again: they are asked anew."""
        pool = kept.holding.pool
        for ask in list(self._groups.asks):
            if any(choice[0].pool == pool and choice not in ask.choices for choice in ask.wanted):
                ask.choices = list(ask.wanted)
                self._settle(ask)
        for line in self._lines_of(kept.holding):
            self._change(line)

    def _kept_in(self, pool: str) -> None:
        """Something is kept in a pool from now on: what no longer fits goes on to its next choice."""
        for choosy in list(self._choosy[pool].values()):
            for ask in list(choosy):
                self._settle(ask)

    def started(self, turn: Turn, nodes: Mapping[str, int]) -> None:
        """It has started on some nodes: what this takes from others, or gives them, is seen to."""
        source, line = turn.group.pop().source, turn.line
        if source is not None and source not in line.started:
            # From its first start in the pass on, the rest of the source waits since now.
            line.started[source] = next(self._numbers)
            self._last_started[line.holding.account.team] = line.started[source]
        line.add(turn.group)
        for other in self._lines_of(line.holding):
            self._change(other)
        self._recheck(line.holding, nodes)

    def again(self) -> None:
        """All that is left may have its turn once more."""
        for ask, _ in list(self.waiting()):
            for group in ask.groups:
                group.entry = None
            ask.choices = list(ask.wanted)
            ask.secures = None
            self._line_of[ask] = None
        self._lines.clear()
        self._entries.clear()
        self._started.clear()
        self._last_started.clear()
        for changed in self._changed:
            changed.clear()
        for pool in self._choosy.values():
            pool.clear()
        for ask, _ in list(self.waiting()):
            self._settle(ask)

    def waiting(self) -> Iterator[tuple[Ask, list[Group]]]:
        """What is left once nothing is next, by ask."""
        for ask in self._groups.asks:
            started = self._started.get(ask.sample.team)
            if started:
                self._groups.part(ask, started)
            groups = [group for group in ask.groups if group]
            if groups:
                yield ask, groups

    def _put_back(self) -> None:
        for group in self._aside:
            group.put_back()
        self._aside.clear()

    def _stands_rightly(self, ask: Ask, line: Line) -> bool:
        if not ask.choices:
            return self._stuck_class(ask) is line.class_ and ask.standing[0] is line.holding
        asker = ask.asker(ask.standing)
        return asker.holding is line.holding and asker.class_ is line.class_ and ask.allows(asker)

    def _settle(self, ask: Ask) -> None:
        """Stand in the line of the first choice that can start now: pools by liking, then sizes."""
        while ask.choices:
            holding, gpus = choice = ask.choices[0]
            # What no account could get needs no closer look.
            if gpus <= self._snapshot.room(holding.pool).free or ask.kept is not None:
                asker = ask.asker(choice)
                if self._can_start(ask, asker):
                    if len(ask.wanted) > 1:
                        self._choosy[holding.pool].setdefault(_size(ask, gpus), {})[ask] = None
                        surer = self._surer_than(ask, asker)
                        ask.secures = None if surer is None else (surer.holding, surer.gpus)
                        asker = surer or asker
                    self._stand(ask, self._line(asker.holding, asker.class_))
                    return
            self._drop_choice(ask)
        class_ = self._stuck_class(ask)
        self._stand(ask, None if class_ is None else self._line(ask.standing[0], class_))

    def _surer_than(self, ask: Ask, first: Asker) -> Asker | None:
        """The first of its further choices that a quota covers and that can start, if the first borrows."""
        if ask.kept is not None or first.class_ is not Class.BORROWING:
            return None
        for choice in ask.choices[1:]:
            asker = ask.asker(choice)
            if asker.class_ < first.class_ and self._can_start(ask, asker, looks=True):
                return asker
        return None

    def _drop_choice(self, ask: Ask) -> None:
        """Its first choice is gone."""
        holding, gpus = ask.choices.pop(0)
        self._choosy[holding.pool].get(_size(ask, gpus), {}).pop(ask, None)

    def _stuck_class(self, ask: Ask) -> Class | None:
        """Choose what to stand by if nothing can start: the best class in which it may make room."""
        best: tuple[Class, Choice] | None = None
        for choice in ask.wanted:
            if not self._snapshot.may_make_room_in(choice[0].pool):
                continue
            asker = ask.in_the_end(choice)
            if (best is None or asker.class_ < best[0]) and self._may_make_room(ask, asker):
                best = (asker.class_, choice)
        ask.stuck = None if best is None else best[1]
        return None if best is None else best[0]

    def _can_start(self, ask: Ask, asker: Asker, *, looks: bool = False) -> bool:
        """Whether the rules and the space let it start so now; remembered, unless it only looks."""
        snapshot = self._snapshot
        if not ask.allows(asker) or not snapshot.within_ceilings(asker):
            return False
        nodes = snapshot.place(asker)
        if nodes is None:
            return False
        if not looks:
            ask.nodes = nodes
        return True

    def _may_make_room(self, ask: Ask, asker: Asker) -> bool:
        """Whether it could preempt, or reserve, so; if not, it certainly cannot."""
        snapshot = self._snapshot
        if ask.kept is not None:
            return False
        may_reserve = (
            asker.class_ is not Class.BORROWING or ask.has_waited
        ) and snapshot.calendar.reservations.is_open(asker.pool, asker.class_)
        if not may_reserve and not snapshot.stoppable.may_act(asker):
            return False
        if not snapshot.within_ceilings(asker):
            return False
        stoppable = snapshot.stoppable
        return (
            ask.allows(asker)
            or stoppable.outranks_its_own(asker)
            or stoppable.is_covered_soon(asker)
        )

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

    def _recheck(self, holding: Holding, nodes: Mapping[str, int]) -> None:
        """After a start, those with a further choice go on to it if their present one is gone."""
        left_for_anybody, fits_anybody = self._snapshot.surely_left(holding.pool)
        too_large = [
            ask
            for gpus, choosy in self._choosy[holding.pool].items()
            if gpus > fits_anybody
            for ask in choosy
            if ask.choices[0][1] > left_for_anybody or not ask.nodes.keys().isdisjoint(nodes)
        ]
        against_the_rules = [
            ask
            for line in self._lines_of(holding)
            for ask in line.asks
            if len(ask.wanted) > 1 and ask.choices and not ask.allows(ask.asker(ask.choices[0]))
        ]
        for ask in too_large + against_the_rules:
            self._settle(ask)

    def _lines_of(self, holding: Holding) -> list[Line]:
        return [
            line
            for account in (holding, *holding.siblings)
            for line in self._lines.get(account, ())
            if line is not None and line.asks
        ]

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


def _size(ask: Ask, gpus: int) -> float:
    """The size by which what has a further choice is looked at again: a split may fail at any size."""
    return inf if ask.per_node else gpus
