"""What begins later, or has begun to wait for its time: a reservation, a claim on a quota, a change of what
teams are entitled to. Each says what it leaves to an asker that would still be there then.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dagster_gpufair.scheduling.accounts.asker import Asker
from dagster_gpufair.scheduling.calendar.then import Then
from dagster_gpufair.scheduling.model import Class, Reservation

Rank = tuple[float, float, str]
"""How a request ranks among all of its account: the lower comes first."""


@dataclass(eq=False)
class Beginning:
    """GPUs, or quota, that are ``owner``'s from ``at`` on; without an owner, what accounts hold back then.

    ``at`` is None if nobody knows when: then it is kept from now on. ``then`` is the pool at that time with
    the owner in its place on ``nodes``. ``of_quota``: only the quota of its account is kept.
    """

    at: float | None
    then: Then
    owner: Asker | None = None
    nodes: Mapping[str, int] | None = None
    rank: Rank = (0.0, 0.0, "")
    of_quota: bool = False
    _left: int | None = None

    @property
    def reservation(self) -> Reservation:
        """As the plan says it."""
        owner = self.owner
        assert owner is not None
        nodes = {} if self.nodes is None else self.then.room.said(self.nodes)
        class_ = Class.GUARANTEED if self.of_quota else owner.class_
        return Reservation(
            owner.request, owner.pool, owner.gpus, nodes, self.at, class_, self.of_quota
        )

    @property
    def keeps_what_is_free(self) -> bool:
        """Whether it is a reservation without a known start."""
        return self.at is None and not self.of_quota

    @property
    def left(self) -> int:
        """The GPUs that it leaves to anybody."""
        if self._left is None:
            assert self.owner is not None
            self._left = self.then.left_for(self.owner)
        return self._left

    def changed(self) -> None:
        """Something has begun or ended in the pool as it is then."""
        self._left = None
        self.then.balance.changed()

    def leaves(self, asker: Asker, rank: Rank | None, then: Then | None = None) -> bool:
        """Whether it leaves enough to an asker, wherever that is.

        Args:
            rank: the asker's own; None: it is not bound by what is kept of quotas.
            then: the pool at that time, if it is not to be as it is known.
        """
        pool = self.then if then is None else then
        if self.owner is None:
            return asker.gpus <= pool.left(asker.holding, in_lane=True)
        binds_quota = rank is not None and self.keeps_quota_from(asker, rank)
        if binds_quota and not self.leaves_quota(asker, pool):
            return False
        if self.of_quota:
            return True
        left = self.left if then is None else then.left_for(self.owner)
        if asker.gpus <= left:
            return True
        spared = pool.spared_by(asker, self.owner.holding, self.owner.gpus, self.owner.request)
        return asker.gpus - spared <= left

    def leaves_quota(self, asker: Asker, then: Then | None = None) -> bool:
        """Whether it leaves enough of the quota of an asker's account, which is its own."""
        if self.of_quota and self.at is None:
            return False
        pool = self.then if then is None else then
        return asker.gpus <= pool.balance.left_of_quota(asker.holding)

    def may_keep_quota_from(self, asker: Asker) -> bool:
        """Whether it is the quota of the asker's account, too, that is kept."""
        owner = self.owner
        return (
            owner is not None
            and owner.holding is asker.holding
            and (self.of_quota or owner.class_ is Class.GUARANTEED)
            and asker.class_ is not Class.URGENT
        )

    def keeps_quota_from(self, asker: Asker, rank: Rank) -> bool:
        """Whether that is kept from an asker of such a rank: from what is worse."""
        return self.rank < rank and self.may_keep_quota_from(asker)

    def leaves_on(self, node: str, gpus: int, then: Then | None = None) -> bool:
        """Whether so many GPUs of a node may be taken beside it."""
        if self.nodes is None or node not in self.nodes:
            return True
        return (self.then if then is None else then).room.nodes.fits(node, gpus)


def owner_of(beginning: Beginning) -> Asker:
    """Who it is kept for, where that is a request."""
    assert beginning.owner is not None
    return beginning.owner
