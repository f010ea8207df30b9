"""What runs: the leases of a moment by pool, team and account, and which of them are borrowed.

Whatever is found out about a pool holds as long as its `version` does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from dagster_gpufair.policy.models import Policy
from dagster_gpufair.scheduling.accounts.accounts import Accounts
from dagster_gpufair.scheduling.accounts.coverage import Borrowed, Coverage, IsBorrowed
from dagster_gpufair.scheduling.accounts.holding import Holding
from dagster_gpufair.scheduling.model import Lease


class Running:
    """All leases, those that start in the pass included."""

    def __init__(self, policy: Policy, leases: Iterable[Lease], accounts: Accounts) -> None:
        self._policy = policy
        self._accounts = accounts
        self._in_pools: dict[str, dict[str, Lease]] = {}
        self._of_teams: dict[tuple[str, str], dict[str, Lease]] = {}
        self._versions: Counter[str] = Counter()
        self._team_versions: Counter[tuple[str, str]] = Counter()
        self._of_accounts: dict[Holding, tuple[int, list[Lease]]] = {}
        self._coverage: dict[tuple[str, str], Coverage] = {}
        for lease in leases:
            self.put(lease)

    def in_pool(self, pool: str) -> Iterable[Lease]:
        """What runs in a pool."""
        return self._in_pools.get(pool, {}).values()

    def of_team(self, team: str, pool: str) -> Iterable[Lease]:
        """What a team runs in a pool."""
        return self._of_teams.get((team, pool), {}).values()

    def of_account(self, holding: Holding) -> list[Lease]:
        """What an account runs in its pool."""
        team, pool = holding.account.team, holding.pool
        version = self._team_versions[team, pool]
        known, leases = self._of_accounts.get(holding, (-1, []))
        if known != version:
            theirs = self.of_team(team, pool)
            leases = [each for each in theirs if self._accounts.holding(each, pool) is holding]
            self._of_accounts[holding] = (version, leases)
        return leases

    def of(self, lease: Lease) -> Lease:
        """The lease as it is now: under notice, if it was given any."""
        return self._in_pools[lease.pool][lease.id]

    def borrowed(self, team: str, pool: str) -> Borrowed:
        """Which of a team's leases in a pool are borrowed."""
        return self._covers(team, pool).borrowed

    def borrowed_now(self, lease: Lease) -> IsBorrowed:
        """Whether a lease is borrowed."""
        return self._covers(lease.team, lease.pool).borrowed_now(lease)

    def borrowed_to_the_end(self, lease: Lease) -> IsBorrowed:
        """Whether it, or one that could start, will be once all that ends before it is gone."""
        return self._covers(lease.team, lease.pool).borrowed_to_the_end(lease)

    @property
    def changes(self) -> int:
        """A number that changes whenever anything does in any pool."""
        return self._versions.total()

    def version(self, pool: str) -> int:
        """A number that changes whenever anything does in the pool."""
        return self._versions[pool]

    def put(self, lease: Lease) -> None:
        """It runs, as it says."""
        self._in_pools.setdefault(lease.pool, {})[lease.id] = lease
        self._of_teams.setdefault((lease.team, lease.pool), {})[lease.id] = lease
        self.changed(lease.pool, lease.team)

    def changed(self, pool: str, team: str) -> None:
        """Something of a team's in a pool is other than it was: what it runs, or what is kept for it."""
        self._coverage.pop((team, pool), None)
        self._versions[pool] += 1
        self._team_versions[team, pool] += 1

    def _covers(self, team: str, pool: str) -> Coverage:
        found = self._coverage.get((team, pool))
        if found is None:
            found = Coverage(self._policy, self._accounts, pool, self.of_team(team, pool))
            self._coverage[team, pool] = found
        return found
