"""What the accounts of one pool have at a moment to come, and what they are entitled to then."""

from __future__ import annotations

from copy import copy

from dagster_gpufair.scheduling.accounts.accounts import Accounts
from dagster_gpufair.scheduling.accounts.entitlements import Key
from dagster_gpufair.scheduling.accounts.holding import Holding
from dagster_gpufair.scheduling.model import Account


class Balance:
    """The accounts of a pool as they are now, but for what they have less then, and what is in force then."""

    def __init__(self, accounts: Accounts, pool: str) -> None:
        self._accounts, self._pool = accounts, pool
        self.key = accounts.in_force(pool)
        self._is_as_now = True
        self._released: dict[Holding, int] = {}
        self._total: int | None = None

    def copy(self) -> Balance:
        """The same, to try something on."""
        other = copy(self)
        other._released = dict(self._released)
        return other

    def come_into_force(self, key: Key) -> None:
        """These grants and windows are in force from here on."""
        self.key, self._total = key, None
        self._is_as_now = key == self._accounts.in_force(self._pool)

    def changed(self) -> None:
        """What accounts have now is other than it was."""
        self._total = None

    def release(self, holding: Holding, gpus: int, of_team: int) -> None:
        """An account has so much less, and its team, where that is another."""
        self._total = None
        self._released[holding] = self._released.get(holding, 0) + gpus
        if holding.whole is not None:
            self._released[holding.whole] = self._released.get(holding.whole, 0) + of_team

    def released(self, holding: Holding) -> int:
        """What an account, or a team as one, has less than now."""
        return self._released.get(holding, 0)

    def quota(self, holding: Holding) -> int:
        """Its quota then."""
        return holding.quota if self._is_as_now else self._entitled(holding)[0]

    def left_of_quota(self, holding: Holding) -> int:
        """What it does not use of its quota."""
        return self.quota(holding) - holding.taken + self.released(holding)

    def less(self, holding: Holding) -> int:
        """By how much less it stands against its quota of now: it has less, or its quota is larger."""
        return self.released(holding) + self.quota(holding) - holding.quota

    def by_others(self, holding: Holding) -> int:
        """The GPUs of the pool that an account must leave to others."""
        for_siblings = sum(self._held_back(sibling) for sibling in holding.siblings)
        return self._all() - self._of_team(holding.team) + for_siblings

    def relief(self, holding: Holding, gpus: int, towards: Holding) -> int:
        """How much of so many GPUs more of one account is held back from another anyway."""
        if holding is towards:
            return 0
        kept = self._held_back if holding.team is towards.team else self._of_team
        of = holding if holding.team is towards.team else holding.team
        before, known = kept(of), self._released
        self._released = {**known, holding: known.get(holding, 0) - gpus}
        if holding.whole is not None:
            self._released[holding.whole] = known.get(holding.whole, 0) - gpus
        after = kept(of)
        self._released = known
        return before - after

    def _all(self) -> int:
        if self._total is None:
            self._total = sum(
                self._of_team(team) for team in self._accounts.keepers_in(self._pool, self.key)
            )
        return self._total

    def _of_team(self, team: Holding) -> int:
        return max(self._held_back(team), sum(self._held_back(each) for each in team.members))

    def _held_back(self, holding: Holding) -> int:
        unlent = holding.unlent if self._is_as_now else self._entitled(holding)[1]
        return max(0, unlent - holding.taken + self.released(holding))

    def _entitled(self, holding: Holding) -> tuple[int, int]:
        entitled = self._accounts.entitlements.of(self._pool, self.key)
        account = holding.account
        if holding.whole is None:
            its = entitled.teams.get(account.team)
        else:
            its = entitled.accounts.get(Account(*account))
        return (holding.quota, holding.unlent) if its is None else its
