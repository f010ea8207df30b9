"""A queue in its plainest form: for every turn, every request is looked at again.

It answers as the product's queue does, without lines, groups or anything kept from turn to turn, so that
the two can be compared: what they find must be the same. Victims are searched for as plainly.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from dagster_gpufair.scheduling.accounts.asker import Asker
from dagster_gpufair.scheduling.accounts.holding import Holding
from dagster_gpufair.scheduling.calendar.kept import Kept
from dagster_gpufair.scheduling.model import Blocked, Class, Request
from dagster_gpufair.scheduling.order import Key, comparison_key
from dagster_gpufair.scheduling.queue.groups import Ask, Group
from dagster_gpufair.scheduling.queue.queue import Turn
from dagster_gpufair.scheduling.snapshot import Snapshot
from dagster_gpufair.scheduling.victims import Found, Victims


@dataclass
class _Line:
    """Stands for a line: the account and the class that a request is judged in."""

    holding: Holding
    class_: Class


class PlainQueue:
    def __init__(
        self, snapshot: Snapshot, requests: Iterable[Request], blocked: Mapping[str, Blocked]
    ) -> None:
        self._snapshot = snapshot
        long_ago = snapshot.now - snapshot.policy.backfill.reserve_after.total_seconds()
        self._left: dict[str, Ask] = {}
        for request in requests:
            ask = Ask(snapshot, request, blocked.get(request.id), request.submitted <= long_ago)
            group = Group(ask, request.source, None)
            group.requests.append(request)
            ask.groups.append(group)
            self._left[request.id] = ask
        self._had_their_turn: set[str] = set()

    @property
    def asks(self) -> list[Ask]:
        return list(self._left.values())

    def next(self) -> Turn | None:
        turns = [
            turn
            for id, ask in self._left.items()
            if id not in self._had_their_turn
            for turn in [self._turn(ask)]
            if turn is not None
        ]
        return min(turns, default=(None, None), key=lambda turn: turn[0])[1]

    def try_next(self, turn: Turn) -> None:
        del turn.group.ask.choices[0]

    def secured(self, turn: Turn, kept: Kept) -> None:
        turn.group.ask.kept, turn.group.ask.secures = kept, None

    def freed(self, kept: Kept) -> None:
        for ask in self._left.values():
            ask.choices = list(ask.wanted)
        self._had_their_turn -= {
            id for id, ask in self._left.items() if ask.groups and self._can_start_at_all(ask)
        }

    def _can_start_at_all(self, ask: Ask) -> bool:
        return any(self._can_start(ask, ask.asker(choice)) for choice in ask.choices)

    def secures_not(self, turn: Turn) -> None:
        turn.group.ask.choices.remove(turn.group.ask.secures)

    def pass_over(self, turn: Turn) -> None:
        self._had_their_turn.add(turn.request.id)

    def reserved(self, turn: Turn, pool: str) -> None:
        self._had_their_turn.add(turn.request.id)

    def promised(self, turn: Turn, asker: Asker, awaits: bool) -> None:
        if awaits:
            self._had_their_turn.add(turn.request.id)
        else:
            del self._left[turn.group.pop().id]

    def started(self, turn: Turn, nodes: Mapping[str, int]) -> None:
        del self._left[turn.group.pop().id]

    def again(self) -> None:
        self._had_their_turn.clear()
        for ask in self._left.values():
            ask.choices = list(ask.wanted)

    def waiting(self) -> Iterator[tuple[Ask, list[Group]]]:
        for ask in self._left.values():
            yield ask, ask.groups

    def _turn(self, ask: Ask) -> tuple[Key, Turn] | None:
        while ask.choices and not self._can_start(ask, ask.asker(ask.choices[0])):
            del ask.choices[0]
        if not ask.choices:
            able = [
                choice for choice in ask.wanted if self._may_make_room(ask, ask.in_the_end(choice))
            ]
            if not able:
                return None
            ask.stuck = min(able, key=lambda choice: ask.in_the_end(choice).class_)
        ask.secures = self._surer_than_the_first(ask)
        asker = ask.asker(ask.standing) if ask.choices else ask.in_the_end(ask.standing)
        head, line = ask.groups[0].head, _Line(asker.holding, asker.class_)
        score = self._snapshot.points(head, asker.holding, self._snapshot.ageing(head)).score
        key = comparison_key(
            asker.class_,
            asker.holding.saturation,
            asker.holding.inside,
            score,
            head.submitted,
            head.id,
        )
        return key, Turn(ask.groups[0], line, is_stuck=not ask.choices)

    def _surer_than_the_first(self, ask: Ask) -> tuple[Holding, int] | None:
        if not ask.choices or ask.kept is not None:
            return None
        first = ask.asker(ask.choices[0]).class_
        for choice in ask.choices[1:] if first is Class.BORROWING else ():
            asker = ask.asker(choice)
            if asker.class_ < first and self._can_start(ask, asker):
                return choice
        return None

    def _can_start(self, ask: Ask, asker: Asker) -> bool:
        within = self._snapshot.within_ceilings(asker)
        return within and ask.allows(asker) and self._snapshot.place(asker) is not None

    def _may_make_room(self, ask: Ask, asker: Asker) -> bool:
        if ask.kept is not None or not self._snapshot.within_ceilings(asker):
            return False
        if not ask.allows(asker):
            stoppable = self._snapshot.stoppable
            return stoppable.outranks_its_own(asker) or stoppable.is_covered_soon(asker)
        may_reserve = asker.class_ is not Class.BORROWING or ask.has_waited
        return (
            may_reserve and self._snapshot.calendar.reservations.is_open(asker.pool, asker.class_)
        ) or self._snapshot.stoppable.may_act(asker)


class PlainVictims:
    """Knows nothing of earlier searches."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def are_needless(self, asker: Asker) -> bool:
        return Victims(self._snapshot).are_needless(asker)

    def find(self, asker: Asker) -> Found | None:
        return Victims(self._snapshot).find(asker)
