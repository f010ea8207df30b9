"""Whether a request has any place at all, once everything that may go is gone."""

from __future__ import annotations

from collections.abc import Callable

from dagster_gpufair.scheduling.accounts.asker import Asker
from dagster_gpufair.scheduling.accounts.entitlements import Key
from dagster_gpufair.scheduling.calendar.beginnings import owner_of
from dagster_gpufair.scheduling.calendar.coming import Coming
from dagster_gpufair.scheduling.calendar.promises import Promises
from dagster_gpufair.scheduling.calendar.reservations import Reservations
from dagster_gpufair.scheduling.calendar.then import Then
from dagster_gpufair.scheduling.present import Present
from dagster_gpufair.scheduling.stoppable import Stoppable


class InTheEnd:
    """The pools when all bounded leases and all others' borrowed parts are gone."""

    def __init__(
        self,
        present: Present,
        stoppable: Stoppable,
        promises: Promises,
        reservations: Reservations,
        coming: Coming,
    ) -> None:
        self._present, self._stoppable, self._promises = present, stoppable, promises
        self._reservations, self._coming = reservations, coming

    def placement(self, asker: Asker, *, for_its_quota: bool = False) -> dict[str, int] | None:
        """Where it would fit once all bounded leases and all others' borrowed parts are gone.

        Args:
            for_its_quota: smaller runs of its account are gone too, and nothing is reserved.
        """
        then = self._in_the_end(asker, for_its_quota)
        if then.class_of(asker) is None:
            return None
        nodes = then.place(asker)
        return None if nodes is None or not self._is_always_left(asker, then) else nodes

    def never_leaves(self, asker: Asker) -> bool:
        """Whether it has no place in the end beside what recurs, though it would have one without that."""
        if not self._coming.in_pool(asker.pool):
            return False
        then = self._in_the_end(asker, for_its_quota=True)
        if then.place(asker) is None:
            return False
        recurs = self._present.accounts.entitlements.recurs
        return not self._is_always_left(asker, then, lambda key: recurs(asker.pool, key))

    def _in_the_end(self, asker: Asker, for_its_quota: bool) -> Then:
        present = self._present
        then = Then(self._present, self._promises, asker.pool)
        for each in () if for_its_quota else self._reservations.others(asker):
            then.block(owner_of(each), each.nodes or {})
        for lease in list(present.running.in_pool(asker.pool)):
            its = present.running.borrowed_now(lease)
            borrowed = its.inside if lease.team == asker.request.team else its.from_others
            own = present.accounts.holding(lease, lease.pool) is asker.holding
            if (
                lease.ends is not None
                or (borrowed and not own)
                or (own and for_its_quota and lease.gpus < asker.gpus)
                or self._stoppable.gone_by(asker, lease) is not None
            ):
                then.end(lease)
        return then

    def _is_always_left(
        self, asker: Asker, then: Then, matters: Callable[[Key], bool] = lambda key: True
    ) -> bool:
        """Whether all that comes into force leaves it enough of what is free in the end."""
        for each in self._coming.beginnings(asker, self._present.now):
            key = each.then.balance.key
            if matters(key):
                then.come_into_force(key)
                if asker.gpus > then.left_for(asker):
                    return False
        return True
