"""Which leases are within a quota, and which are borrowed (design §4).

The quota goes to higher tiers first, then to the older lease. A lease that does not fit whole into what is
left of the quota is borrowed, and later smaller ones may still be within it. So what is borrowed is the
account's least important and newest work, and it changes as leases end. What is under notice comes last,
since it is about to be stopped. A lease within a quota is called covered here.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import NamedTuple

from dagster_gpufair.policy.models import Policy
from dagster_gpufair.scheduling.accounts.accounts import Accounts
from dagster_gpufair.scheduling.model import Account, Lease


class Borrowed(NamedTuple):
    """Ids of borrowed leases: ``inside``, of those that their own account's quota does not cover; and of
    those, ``from_others`` what the quota of their team as a whole does not cover either.
    """

    inside: frozenset[str]
    from_others: frozenset[str]


class IsBorrowed(NamedTuple):
    """Whether one lease is borrowed, in the same two ways."""

    inside: bool
    from_others: bool


_Key = tuple[bool, float, float, str]
"""The order in which the quota goes to leases: no notice first, then by tier, then by start."""


class Coverage:
    """What the quotas of one team cover of its leases in one pool."""

    def __init__(
        self, policy: Policy, accounts: Accounts, pool: str, leases: Iterable[Lease]
    ) -> None:
        self._policy, self._accounts, self._pool = policy, accounts, pool
        self._in_order = sorted((self._key(lease), lease) for lease in leases)
        self._to_the_end: dict[tuple[str, int, float], IsBorrowed] = {}

    @cached_property
    def borrowed(self) -> Borrowed:
        """Which of them are borrowed now."""
        return self._borrowed([lease for _, lease in self._in_order])

    def borrowed_now(self, lease: Lease) -> IsBorrowed:
        """Whether one of them is borrowed now."""
        return IsBorrowed(lease.id in self.borrowed.inside, lease.id in self.borrowed.from_others)

    def borrowed_to_the_end(self, lease: Lease) -> IsBorrowed:
        """Whether one of them, or one more, will be once all that ends before it is gone.

        By then the quota may cover more.
        """
        alike = (lease.id, lease.gpus, lease.started)
        found = self._to_the_end.get(alike)
        if found is None:
            found = self._to_the_end[alike] = self._in_the_end(lease)
        return found

    def _in_the_end(self, lease: Lease) -> IsBorrowed:
        key, ends = self._key(lease), lease.ends
        lasting = (
            (its_key, other)
            for its_key, other in self._in_order
            if other.id != lease.id
            and (other.ends is None or (ends is not None and other.ends > ends))
        )
        holding = self._accounts.holding(lease, self._pool)
        if holding.whole is not None:
            theirs = sorted([*lasting, (key, lease)])
            borrowed = self._borrowed([each for _, each in theirs])
            return IsBorrowed(lease.id in borrowed.inside, lease.id in borrowed.from_others)
        # One account: what comes before it is enough to know.
        left = holding.quota
        for its_key, other in lasting:
            if its_key > key:
                break
            if other.gpus <= left:
                left -= other.gpus
        is_lent = lease.gpus > left
        return IsBorrowed(is_lent, is_lent)

    def _borrowed(self, leases: list[Lease]) -> Borrowed:
        """Of these, in the order in which they are covered."""
        left: dict[Account, int] = {}
        of_team: int | None = None
        inside: list[str] = []
        from_others: list[str] = []
        for is_leaving in (False, True):
            uncovered = []
            for lease in leases:
                if (lease.notice_until is not None) is not is_leaving:
                    continue
                holding = self._accounts.holding(lease, self._pool)
                if of_team is None:
                    of_team = holding.team.quota
                quota = left.setdefault(holding.account, holding.quota)
                if lease.gpus <= quota:
                    left[holding.account] = quota - lease.gpus
                    of_team -= lease.gpus
                else:
                    uncovered.append(lease)
            for lease in uncovered:
                inside.append(lease.id)
                if of_team is not None and lease.gpus <= of_team:
                    of_team -= lease.gpus
                else:
                    from_others.append(lease.id)
        return Borrowed(frozenset(inside), frozenset(from_others))

    def _key(self, lease: Lease) -> _Key:
        tier = self._policy.tiers.get(lease.tier)
        points = tier.points if tier else 0.0
        return (lease.notice_until is not None, -points, lease.started, lease.id)


def borrowed_part(policy: Policy, leases: Iterable[Lease], now: float) -> frozenset[str]:
    """The leases, by id, that are borrowed from other teams."""
    leases = list(leases)
    accounts = Accounts(policy, leases, {}, {}, now)
    theirs: dict[tuple[str, str], list[Lease]] = {}
    for lease in leases:
        theirs.setdefault((lease.team, lease.pool), []).append(lease)
    return frozenset().union(
        *(
            Coverage(policy, accounts, pool, held).borrowed.from_others
            for (_, pool), held in theirs.items()
        )
    )
