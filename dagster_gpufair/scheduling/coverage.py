"""Which leases the quotas cover, and which are borrowed.

A quota covers higher tiers first, then the older lease. One that does not fit whole into what is left
of the quota is borrowed, and later smaller ones may still be covered. So what is borrowed is the
account's least important and newest work, and it changes as leases end. What is under notice is covered
last: it is leaving.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from dagster_gpufair.policy.models import Policy
from dagster_gpufair.scheduling.accounts import Accounts
from dagster_gpufair.scheduling.model import Account, Lease


class Borrowed(NamedTuple):
    """Ids of borrowed leases: ``inside``, of those that their own account's quota does not cover; and of
    those, ``from_others`` what the quota of their team as a whole does not cover either.
    """

    inside: frozenset[str]
    from_others: frozenset[str]


def borrowed_of_team(
    policy: Policy, accounts: Accounts, pool: str, leases: Iterable[Lease]
) -> Borrowed:
    """What is borrowed of the leases of one team in one pool."""

    def covered_first(lease: Lease) -> tuple[bool, float, float, str]:
        tier = policy.tiers.get(lease.tier)
        points = tier.points if tier else 0.0
        return (lease.notice_until is not None, -points, lease.started, lease.id)

    left: dict[Account, int] = {}
    of_team = 0
    inside: list[Lease] = []
    for at, lease in enumerate(sorted(leases, key=covered_first)):
        holding = accounts.holding(lease, pool)
        if at == 0:
            of_team = holding.team.quota
        quota = left.setdefault(holding.account, holding.quota)
        if lease.gpus <= quota:
            left[holding.account] = quota - lease.gpus
            of_team -= lease.gpus
        else:
            inside.append(lease)
    from_others = []
    for lease in inside:
        if lease.gpus <= of_team:
            of_team -= lease.gpus
        else:
            from_others.append(lease.id)
    return Borrowed(frozenset(lease.id for lease in inside), frozenset(from_others))


def borrowed_part(policy: Policy, leases: Iterable[Lease], now: float) -> frozenset[str]:
    """The leases, by id, that are borrowed from other teams."""
    leases = list(leases)
    accounts = Accounts(policy, leases, {}, {}, now)
    theirs: dict[tuple[str, str], list[Lease]] = {}
    for lease in leases:
        theirs.setdefault((lease.team, lease.pool), []).append(lease)
    return frozenset().union(
        *(
            borrowed_of_team(policy, accounts, pool, held).from_others
            for (_, pool), held in theirs.items()
        )
    )
