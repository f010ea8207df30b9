"""What is and what is known of the future, for one decision, which changes it step by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dagster_gpufair.policy.in_force import Upcoming, upcoming
from dagster_gpufair.policy.models import Policy
from dagster_gpufair.scheduling.accounts.asker import Asker
from dagster_gpufair.scheduling.calendar.calendar import Calendar
from dagster_gpufair.scheduling.calendar.kept import Kept
from dagster_gpufair.scheduling.calendar.promises import Promises
from dagster_gpufair.scheduling.model import Cards, State, Victim
from dagster_gpufair.scheduling.present import Present
from dagster_gpufair.scheduling.stoppable import Stoppable


class Snapshot(Present):
    """What a pass knows: who has what, what is free, and what is to come.

    Only `start`, `promise` and what `promises` does change it, and each of these the version of its pool.
    """

    def __init__(self, policy: Policy, state: State, now: float) -> None:
        super().__init__(policy, state, now)
        self.stoppable = Stoppable(self)
        self.promises = Promises(self)
        self.calendar = Calendar(self, self.stoppable, self.promises)
        self.promises.keep_as_before(state.requests, state.blocked)

    def within_ceilings(self, asker: Asker) -> bool:
        """Whether no ceiling of its team keeps it from starting; what is promised to it counts already."""
        request = asker.request
        if self.promises.of(request.id) is not None:
            return True
        return self.ceilings.exceeded(request, asker.pool, asker.gpus) is None

    def surely_left(self, pool: str) -> tuple[float, float]:
        """How many GPUs of the pool anybody may take in all; and a size that, if whole, then fits a node."""
        if self.calendar.has_to_come(pool):
            return 0, 0
        room = self.room(pool)
        most, kept_nodes = self.calendar.surely_leaves(pool)
        left = room.free - self.accounts.held_back(pool) - room.lane_left
        most = min(most, left, self.promises.surely_leave(pool))
        return most, min(most, room.surely_fits(kept_nodes))

    def place(self, asker: Asker) -> Mapping[str, int] | None:
        """The nodes it gets if it starts now, or None if it is space that is missing.

        What was promised to it comes first, once its victims have left.
        """
        kept = self.promises.of(asker.request.id)
        if kept is None or kept.holding.pool != asker.pool:
            return self.calendar.place(asker)
        is_that = (kept.holding, kept.gpus) == (asker.holding, asker.gpus)
        if is_that and (kept.lease is not None or self.promises.is_ready(kept)):
            return kept.nodes
        # It may also start beside its victims, on what is kept for it and on other GPUs.
        return self.calendar.place_instead(asker, kept)

    def may_make_room_in(self, pool: str) -> bool:
        """Whether anything could still be reserved in the pool, or stopped for somebody."""
        return self.calendar.reservations.has_place(pool) or self.stoppable.may_stop_in(pool)

    def windows_ahead(self, pool: str) -> Sequence[Upcoming]:
        """The next occurrence of each window of a pool, earliest first."""
        policy = self.policy
        ahead = upcoming(policy, self.now) if policy.windows else ()
        return [each for each in ahead if each.pool == pool and each.team in policy.teams]

    def secure(self, asker: Asker, nodes: Mapping[str, int]) -> Kept:
        """What is free is kept for a request while it tries for more, in this pass."""
        kept = self.promises.secure(asker, nodes)
        self.calendar.kept(asker, kept, (), self.now)
        return kept

    def started_elsewhere(self, kept: Kept) -> None:
        """It has started on other GPUs than those promised to it: its victims may stay."""
        self.promises.started_elsewhere(kept.request)
        self.calendar.spared(kept.holding.pool)

    def fulfil(self, kept: Kept) -> None:
        """What was promised is kept no more: its owner starts."""
        self.calendar.withdrawn(kept)
        self.promises.withdraw(kept.request)

    def start(self, asker: Asker, nodes: Mapping[str, int]) -> Cards:
        """The request starts, on these cards."""
        cards = self.cards_for(asker, nodes)
        self.calendar.started(asker, nodes, cards)
        self.count(asker, nodes, cards)
        return cards

    def promise(self, asker: Asker, nodes: Mapping[str, int], victims: Sequence[Victim]) -> None:
        """The victims are given notice, and the placement is kept for the request."""
        before = [victim.lease for victim in victims]
        kept = self.promises.make(asker, nodes, victims)
        given_notice = [(lease, self.running.of(lease)) for lease in before]
        self.calendar.kept(asker, kept, given_notice, self.soon_at(asker.pool))
