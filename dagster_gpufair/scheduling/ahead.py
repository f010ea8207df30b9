"""Windows that are still to come: what would reach into one must leave it enough.

During a window its GPUs are quota of its team, which it does not lend (see `accounts`). Before one, a lease
that could reach into it starts only if enough is left for the window without it, or if it could be
preempted for the window's team. What runs already and could be preempted is not counted either.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from dagster_gpufair.policy.in_force import Upcoming, held, upcoming
from dagster_gpufair.scheduling.horizon import Asker
from dagster_gpufair.scheduling.model import Account, Lease

if TYPE_CHECKING:
    from dagster_gpufair.scheduling.snapshot import Snapshot


class Ahead:
    """The next occurrence of each window, by pool."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._windows: dict[str, list[Upcoming]] = {}
        policy = snapshot.policy
        for window in upcoming(policy, snapshot.now) if policy.windows else ():
            if window.team in policy.teams:
                self._windows.setdefault(window.pool, []).append(window)
        self._left: dict[Upcoming, tuple[int, int]] = {}
        self._lasting: dict[Upcoming, frozenset[str]] = {}

    def windows(self, pool: str) -> Sequence[Upcoming]:
        """The next occurrences in a pool, earliest first."""
        return self._windows.get(pool, ())

    def most(self, asker: Asker, begins: float, freed: Iterable[Lease] = ()) -> float:
        """The most that the windows to come let an asker take if it begins then, once ``freed`` are gone."""
        most = float("inf")
        for window in self._windows.get(asker.pool, ()):
            length = asker.request.max_duration
            reaches_in = begins < window.until and (
                length is None or begins + length > window.start
            )
            if not reaches_in or asker.request.team == window.team:
                continue
            if not self._could_be_stopped(asker, begins, window):
                left = self._left_beside(window)
                lasting = self._lasting[window]
                left += sum(lease.gpus for lease in freed if lease.id in lasting)
                most = min(most, left + asker.holding.held_back)
        return most

    def _could_be_stopped(self, asker: Asker, begins: float, window: Upcoming) -> bool:
        return not self._lasts(asker.as_lease(begins), window)

    def _left_beside(self, window: Upcoming) -> int:
        """What others may have of the pool when the window starts, beside what lasts until then."""
        snapshot = self._snapshot
        version, left = self._left.get(window, (-1, 0))
        if version == snapshot.running.version(window.pool):
            return left
        team = snapshot.accounts.account(Account(window.team), window.pool).team
        lasting = [
            lease for lease in snapshot.running.in_pool(window.pool) if self._lasts(lease, window)
        ]
        self._lasting[window] = frozenset(lease.id for lease in lasting)
        of_team = sum(lease.gpus for lease in lasting if lease.team == window.team)
        promised = sum(kept.gpus for kept in snapshot.promises.in_pool(window.pool))
        in_force = held(snapshot.policy, snapshot.now).get((window.team, window.pool), 0)
        then = held(snapshot.policy, window.start).get((window.team, window.pool), 0)
        needs = max(0, team.unlent - in_force + then - of_team)
        held_back = snapshot.accounts.held_back_by_others(
            team.members[-1] if team.members else team
        )
        left = (
            snapshot.room(window.pool).ready
            - sum(lease.gpus for lease in lasting)
            - promised
            - needs
            - held_back
        )
        self._left[window] = (snapshot.running.version(window.pool), left)
        return left

    def _lasts(self, lease: Lease, window: Upcoming) -> bool:
        """Whether a lease may be there when the window starts, and cannot be stopped for it."""
        if lease.ends is not None and lease.ends <= window.start:
            return False
        snapshot, preemption = self._snapshot, self._snapshot.preemption
        tier = snapshot.policy.tiers.get(lease.tier)
        return (
            lease.team == window.team
            or not preemption.by_itself
            or (tier is not None and tier.preemptible == "never")
            or not snapshot.running.lent_to_the_end(lease).from_others
            or lease.works_from + preemption.min_runtime + preemption.grace > window.start
        )
