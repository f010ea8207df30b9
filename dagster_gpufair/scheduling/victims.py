"""Which of the leases that may be stopped for a request are: the least harm that lets it start.

They are taken, the least harm first, until it fits; then given back, in reverse, where they are not needed.
What ends before they would have to be gone counts as gone.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from operator import attrgetter
from typing import NamedTuple

from dagster_gpufair.scheduling.accounts.asker import Asker
from dagster_gpufair.scheduling.calendar.then import Then
from dagster_gpufair.scheduling.model import Class, Lease, Victim
from dagster_gpufair.scheduling.snapshot import Snapshot


class Found(NamedTuple):
    """The victims for an asker, and the placement that it gets once they are gone."""

    victims: list[Victim]
    nodes: Mapping[str, int]


class _Known(NamedTuple):
    """For what lengths of work an answer is known, as long as ``moment`` lasts.

    A shorter bound only lets more start: it keeps clear of a window or a reservation, and may use the fast
    lane. So yes holds for shorter work too, and no for longer.
    """

    moment: tuple[int, int]
    yes_to: float | None = None
    no_from: float | None = None

    def answer(self, length: float) -> bool | None:
        if self.yes_to is not None and length <= self.yes_to:
            return True
        return False if self.no_from is not None and length >= self.no_from else None

    def and_also(self, answer: bool, length: float, matters: bool) -> _Known:
        """With one more answer; for all lengths, if the length does not matter."""
        if answer:
            return self._replace(yes_to=length if matters else math.inf)
        return self._replace(no_from=length if matters else -math.inf)


class Victims:
    """The search for victims in one pass. Those who ask alike search once."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._needless: dict[tuple[object, ...], _Known] = {}
        self._found: dict[tuple[object, ...], _Known] = {}
        self._over: dict[str, tuple[int, list[Lease], Then]] = {}
        self._candidates_of: dict[tuple[object, ...], tuple[int, list[Victim]]] = {}

    def are_needless(self, asker: Asker) -> bool:
        """Whether enough ends by itself while the victims would still have their grace."""
        key, length = self._alike(asker), _length(asker)
        known = self._known(self._needless, key, asker)
        answer = known.answer(length)
        if answer is None:
            answer = self._ends_by_itself(asker)
            matters = self._keeps_by_length(asker.pool)
            self._needless[key] = known.and_also(answer, length, matters)
        return answer

    def find(self, asker: Asker) -> Found | None:
        """The least harm that lets the asker start, or None."""
        snapshot = self._snapshot
        if not snapshot.stoppable.may_stop_in(asker.pool):
            return None
        key, length = self._alike(asker), _length(asker)
        known = self._known(self._found, key, asker)
        if known.answer(length) is False:
            return None
        found = self._search(asker)
        if found is None:
            matters = self._keeps_by_length(asker.pool) or bool(
                snapshot.calendar.reservations.others(asker)
            )
            self._found[key] = known.and_also(False, length, matters)
        return found

    def counts_on(self, asker: Asker, found: Found, proposed: Container[str]) -> bool:
        """Whether it would not start but for what leaves only once a person has agreed to that.

        Args:
            proposed: the requests for which a person is asked.
        """
        calendar, begins = self._snapshot.calendar, self._snapshot.soon_at(asker.pool)
        over = [
            *(
                lease
                for lease in self._over_soon(asker.pool)[0]
                if lease.notice_for not in proposed
            ),
            *(victim.lease for victim in found.victims),
        ]
        then = calendar.as_now(asker.pool)
        for lease in over:
            then.end(lease)
        beginnings = {}
        for each in calendar.beginnings(asker, begins):
            beginnings[each] = each.then.copy()
            for lease in over:
                if each.then.has(lease):
                    beginnings[each].end(lease)
        return calendar.place_then(asker, begins, then, beginnings) is None

    def _alike(self, asker: Asker) -> tuple[object, ...]:
        """What all have in common for whom a search ends alike, but for the length of their work."""
        request = asker.request
        return (
            asker.holding,
            asker.gpus,
            asker.class_,
            asker.rights,
            request.tier,
            request.gpus_per_node,
        )

    def _known(
        self, answers: dict[tuple[object, ...], _Known], key: tuple[object, ...], asker: Asker
    ) -> _Known:
        snapshot, pool = self._snapshot, asker.pool
        moment = (snapshot.running.version(pool), snapshot.calendar.reservations.version(pool))
        known = answers.get(key)
        return _Known(moment) if known is None or known.moment != moment else known

    def _keeps_by_length(self, pool: str) -> bool:
        """Whether anything is kept in the pool from work by its length, but for reservations."""
        snapshot = self._snapshot
        return snapshot.room(pool).lane is not None or snapshot.calendar.has_to_come(pool)

    def _over_soon(self, pool: str) -> tuple[list[Lease], Then]:
        """What ends before somebody who is given notice now has to be gone, and the pool then."""
        version = self._snapshot.running.version(pool)
        known = self._over.get(pool)
        if known is None or known[0] != version:
            soon = self._snapshot.soon_at(pool)
            leases = self._snapshot.running.in_pool(pool)
            over = [lease for lease in leases if lease.ends is not None and lease.ends <= soon]
            future = self._snapshot.calendar.as_now(pool)
            for lease in over:
                future.end(lease)
            known = self._over[pool] = (version, over, future)
        return known[1:]

    def _ends_by_itself(self, asker: Asker) -> bool:
        """Whether enough is over by then without anybody's being stopped."""
        snapshot, pool = self._snapshot, asker.pool
        soon = snapshot.soon_at(pool)
        over, then = self._over_soon(pool)
        # No end leaves less: where it does not fit when all are over, it never fits before.
        fits = asker.gpus <= then.left_for(asker) or self._is_given_up(asker, soon)
        if not fits:
            return False
        ends = attrgetter("ends")
        return snapshot.calendar.earliest(asker, over, ends, until=soon) is not None

    def _is_given_up(self, asker: Asker, soon: float) -> bool:
        """Whether anything that is kept for others now is over by then, with their work."""
        ends = [kept.ends for kept in self._snapshot.promises.in_pool(asker.pool)]
        return any(end is not None and end <= soon for end in ends) or (
            self._snapshot.calendar.changes_by(asker.pool, soon)
        )

    def _search(self, asker: Asker) -> Found | None:
        snapshot = self._snapshot
        room, candidates = snapshot.room(asker.pool), self._candidates(asker)
        _, future = self._over_soon(asker.pool)
        freed = sum(sum(room.where(candidate.lease).values()) for candidate in candidates)
        if not candidates or asker.gpus > future.room.free + freed:
            return None
        for is_fair_at_every_step in (False, True):
            attempt = _Attempt(snapshot, asker, self._then(asker.pool), is_fair_at_every_step)
            if any(attempt.take(candidate) for candidate in candidates):
                found = attempt.give_back()
                if found is not None:
                    return found
            if not any(candidate.rule == "rebalance" for candidate in candidates):
                return None
        return None

    def _then(self, pool: str) -> Then:
        """The pool when who is given notice now has to be gone."""
        then = self._over_soon(pool)[1].copy()
        key = self._snapshot.accounts.entitlements.key(pool, self._snapshot.soon_at(pool))
        then.come_into_force(key)
        return then

    def _candidates(self, asker: Asker) -> list[Victim]:
        """All that may be stopped for it now, the least harm first."""
        snapshot, preemption = self._snapshot, self._snapshot.stoppable
        covered = preemption.best_class(asker)
        alike = (asker.holding, asker.rights, asker.request.tier, covered)
        version, found = self._candidates_of.get(alike, (-1, []))
        if version != snapshot.running.version(asker.pool):
            found = [
                Victim(lease, rule)
                for lease in preemption.stoppable(asker.pool)
                if (rule := preemption.rule(asker, lease, snapshot.running.borrowed_now(lease)))
            ]
            self._candidates_of[alike] = (snapshot.running.version(asker.pool), found)
        return found


def _length(asker: Asker) -> float:
    length = asker.request.max_duration
    return math.inf if length is None else length


class _Attempt:
    """Victims taken for an asker one after another, until it fits; then given back what is not needed.

    ``future`` is the pool when they have to be gone.
    Whether a rebalancing is fair is judged once it is known who has to leave; or, if that finds nobody,
    ``at_every_step``, so that what would not be fair is never taken.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        asker: Asker,
        future: Then,
        at_every_step: bool,
    ) -> None:
        self._snapshot = snapshot
        self._asker = asker
        self._begins = snapshot.soon_at(asker.pool)
        self._beginnings = {
            each: each.then.copy() for each in snapshot.calendar.beginnings(asker, self._begins)
        }
        self._at_every_step = at_every_step
        self._future = future
        self._taken: dict[str, Victim] = {}
        self._order: list[str] = []
        self._reclaims = {True: 0, False: 0}

    def take(self, victim: Victim) -> bool:
        """Take one more; whether the asker fits now."""
        self._order.append(victim.lease.id)
        self._add(victim)
        if self._at_every_step and victim.rule == "rebalance" and not self._is_fair():
            self._undo(victim)
            return False
        return self._place() is not None

    def give_back(self) -> Found | None:
        """Of those taken, all that are needed, and the placement then; None if that would not be fair."""
        for victim in reversed(list(self._taken.values())):
            self._undo(victim)
            if not self._taken or self._place() is None:
                self._add(victim)
        nodes = self._place()
        if nodes is None or not self._is_fair():
            return None
        # In the order in which they were taken: the least harm first.
        needed = [self._taken[id] for id in self._order if id in self._taken]
        return Found(needed, nodes)

    def _place(self) -> Mapping[str, int] | None:
        """Where the asker would start without those taken, if the rules and the space allow it."""
        asker, future = self._asker, self._future
        if future.room.place(asker.gpus, asker.request.gpus_per_node) is None:
            return None
        if not self._is_allowed():
            return None
        calendar = self._snapshot.calendar
        beginnings = {
            each: calendar.reservations.keeping(each, future) if each.keeps_what_is_free else then
            for each, then in self._beginnings.items()
        }
        return calendar.place_then(asker, self._begins, future, beginnings)

    def _add(self, victim: Victim) -> None:
        self._future.end(victim.lease)
        for then in self._lasting_in(victim.lease):
            then.end(victim.lease)
        self._taken[victim.lease.id] = victim
        self._count(victim, 1)

    def _undo(self, victim: Victim) -> None:
        self._future.go_on(victim.lease)
        for then in self._lasting_in(victim.lease):
            then.go_on(victim.lease)
        del self._taken[victim.lease.id]
        self._count(victim, -1)

    def _lasting_in(self, lease: Lease) -> list[Then]:
        """Of the pool as it is when other things begin, where the lease would be there still."""
        return [then for each, then in self._beginnings.items() if each.then.has(lease)]

    def _count(self, victim: Victim, by: int) -> None:
        """How many are reclaimed from siblings, and from other teams."""
        if victim.rule == "reclaim":
            self._reclaims[victim.lease.team == self._asker.request.team] += by

    def _is_allowed(self) -> bool:
        asker, future = self._asker, self._future
        if future.class_of(asker) is None:
            return False
        holding, team = asker.holding, asker.holding.team
        balance = future.balance
        less, team_less = balance.less(holding), balance.less(team)
        covered = holding.covers(asker.gpus, less, team_less)
        if self._reclaims[True] and covered is not Class.GUARANTEED:
            return False
        total = team.taken - team_less + asker.gpus
        return not self._reclaims[False] or (covered <= Class.SHARED and total <= team.quota)

    def _is_fair(self) -> bool:
        """Whether after the swap its account is not better served above quota than any it rebalances."""
        accounts, future = self._snapshot.accounts, self._future
        for victim in self._taken.values():
            if victim.rule != "rebalance":
                continue
            mine, theirs = self._asker.holding, accounts.holding(victim.lease, victim.lease.pool)
            if mine.team is not theirs.team:
                mine, theirs = mine.team, theirs.team
            after = (mine.taken - future.balance.released(mine) + self._asker.gpus - mine.quota) / (
                mine.effective_weight
            )
            left = (theirs.taken - future.balance.released(theirs) - theirs.quota) / (
                theirs.effective_weight
            )
            if max(0.0, after) > max(0.0, left):
                return False
        return True
