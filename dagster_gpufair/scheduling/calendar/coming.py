"""What comes into force: the grants and windows for which more is held back than before."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence

from dagster_gpufair.scheduling.accounts.asker import Asker
from dagster_gpufair.scheduling.accounts.entitlements import HORIZON, Key
from dagster_gpufair.scheduling.calendar.beginnings import Beginning
from dagster_gpufair.scheduling.calendar.promises import Promises
from dagster_gpufair.scheduling.calendar.then import Then
from dagster_gpufair.scheduling.model import Lease
from dagster_gpufair.scheduling.present import Present
from dagster_gpufair.scheduling.stoppable import Stoppable


class Coming:
    """Of all pools. The pool at such a time is worked out when it is first asked about."""

    def __init__(self, present: Present, stoppable: Stoppable, promises: Promises) -> None:
        self._present, self._stoppable, self._promises = present, stoppable, promises
        self._to_come: dict[str, Mapping[Key, Sequence[float]]] = {}
        self._begins: dict[str, dict[float, Beginning]] = {}

    def worked_out(self, pool: str) -> Collection[Beginning]:
        """Those of a pool that were asked about."""
        return self._begins.get(pool, {}).values()

    def forget(self, pool: str) -> None:
        """Work those of a pool out anew."""
        self._begins.pop(pool, None)

    def forget_all(self) -> None:
        """Work all of them out anew."""
        self._begins.clear()

    def beginnings(self, asker: Asker, begins: float) -> Iterable[Beginning]:
        """For each set of grants and windows for which more is held back: when that is first in force.

        What lasts beyond the horizon meets again what recurs, whenever it begins.
        """
        to_come = self.in_pool(asker.pool)
        if not to_come:
            return ()
        length = asker.request.max_duration
        outlasts = length is None or begins + length > self._present.now + HORIZON
        recurs = self._present.accounts.entitlements.recurs
        found = []
        for key, moments in to_come.items():
            later = bisect_right(moments, begins)
            if later < len(moments):
                found.append(self._to_come_at(asker.pool, moments[later], key))
            elif outlasts and recurs(asker.pool, key):
                found.append(self._to_come_at(asker.pool, moments[-1], key))
        return found

    def in_pool(self, pool: str) -> Mapping[Key, Sequence[float]]:
        """The sets of grants and windows for which more is held back than before, and when they begin."""
        if pool not in self._to_come:
            entitlements = self._present.accounts.entitlements
            before = self._present.accounts.in_force(pool)
            found: dict[Key, list[float]] = {}
            for at, key in entitlements.changes(pool, self._present.now):
                if entitlements.beneficiaries(pool, key, before):
                    found.setdefault(key, []).append(at)
                before = key
            self._to_come[pool] = found
        return self._to_come[pool]

    def _to_come_at(self, pool: str, at: float, key: Key) -> Beginning:
        known = self._begins.setdefault(pool, {})
        if at not in known:
            known[at] = self._work_out(pool, at, key)
        return known[at]

    def _work_out(self, pool: str, at: float, key: Key) -> Beginning:
        then = Then(self._present, self._promises, pool)
        then.come_into_force(key)
        beginning = Beginning(at, then)
        for lease in list(self._present.running.in_pool(pool)):
            if self.is_gone_for(beginning, lease):
                then.end(lease)
        return beginning

    def is_gone_for(self, beginning: Beginning, lease: Lease) -> bool:
        """Whether a lease is over when that comes into force, or can be stopped for those who gain by it."""
        at = beginning.at
        assert at is not None
        if lease.ends is not None and lease.ends <= at:
            return True
        present = self._present
        key = beginning.then.balance.key
        gaining = present.accounts.entitlements.beneficiaries(
            lease.pool, key, present.accounts.in_force(lease.pool)
        )
        return bool(gaining - {lease.team}) and self._stoppable.could_be_reclaimed_by(lease, at)

    def ahead_of(self, pool: str, at: float, then: Then) -> object:
        """What is in force, and how far away is what comes into force."""
        ahead = []
        for key, moments in self.in_pool(pool).items():
            later = bisect_right(moments, at)
            ahead.append((key, moments[later] - at if later < len(moments) else None))
        return then.balance.key, tuple(ahead)
