"""A line: groups of requests that would start in one account, pool and class.

Among them only the score decides, then the submission; between lines, class and saturation do. The
points for a source are the same for all its requests in a line, and change with every start of the
account. So a line keeps its groups apart by source, each part in the order of the other points, and
adds those for the sources when it is asked for its best.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush

from dagster_gpufair.scheduling.accounts.holding import Holding
from dagster_gpufair.scheduling.model import Class
from dagster_gpufair.scheduling.order import Key, comparison_key
from dagster_gpufair.scheduling.queue.groups import Ask, Entry, Group, Groups
from dagster_gpufair.scheduling.snapshot import Snapshot


class Line:
    """``asks`` are those that stand in it; ``entered`` is the number of its entry in the queue.

    ``started`` holds the sources of the account's team that have started something in this pass, each
    with the number of its first start: what was entered before that, by its number, has since gone
    back in the line. ``numbers`` are those of the whole pass.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        groups: Groups,
        numbers: Iterator[int],
        started: dict[str | None, int],
        holding: Holding,
        class_: Class,
    ) -> None:
        self._snapshot = snapshot
        self._groups = groups
        self._numbers = numbers
        self.started = started
        self.holding = holding
        self.class_ = class_
        self.asks: dict[Ask, None] = {}
        self.entered = 0
        self._by_source: dict[str | None, list[Entry]] = {}

    def best(self) -> tuple[Key, Group] | None:
        """The group whose first request is the best in this line now."""
        if not self.asks:
            self._by_source.clear()
            return None
        # First those of many sources: what is no more like the rest joins its own source's.
        self._tidy(self._by_source.get(None, []))
        best: tuple[float, float, str, Group] | None = None
        for source, entries in self._by_source.items():
            if source is not None:
                self._tidy(entries)
            if entries:
                minus_score, submitted, id_, _, group = entries[0]
                minus_score -= self._snapshot.order.source_points(source, self.holding)
                if best is None or (minus_score, submitted, id_) < best[:3]:
                    best = (minus_score, submitted, id_, group)
        if best is None:
            return None
        minus_score, submitted, id_, group = best
        key = comparison_key(
            self.class_,
            self.holding.saturation,
            self.holding.inside,
            -minus_score,
            submitted,
            id_,
        )
        return key, group

    def add(self, group: Group) -> None:
        """Let a group stand here, by its first request that is still like the rest of it."""
        while group and group.source is None and group.head.source in self.started:
            own = self._groups.of_its_source(group, group.head)
            was_empty = not own
            own.requests.append(group.pop())
            if was_empty:
                self._push(own)
        if group:
            self._push(group)

    def _push(self, group: Group) -> None:
        entry = group.entry
        if entry is None or group.holding is not self.holding or self._has_aged(entry):
            head, score = group.head, group.score(self._snapshot, self.holding)
            entry = (-score, head.submitted, head.id, next(self._numbers), group)
            group.entry = entry
        heappush(self._by_source.setdefault(group.source, []), entry)

    def _tidy(self, entries: list[Entry]) -> None:
        """Leave an entry on top that still holds."""
        while entries:
            entry = entries[0]
            group = entry[-1]
            if group.entry is not entry or group.ask not in self.asks:
                heappop(entries)
            elif self._has_aged(entry):
                heappop(entries)
                self.add(group)
            else:
                return

    def _has_aged(self, entry: Entry) -> bool:
        """Whether the source of its request has started something since it was made."""
        return entry[3] < self.started.get(entry[-1].head.source, 0)
