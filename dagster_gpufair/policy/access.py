"""Which teams may use which pools, and by what right."""

from __future__ import annotations

from dagster_gpufair.policy.models import Policy


class Access:
    """The ways to GPUs that a policy leaves open, whatever the moment."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._given = {(grant.team, grant.pool) for grant in policy.grants}
        self._given |= {(window.team, window.pool) for window in policy.windows}

    def may_use(self, team: str, pool: str) -> bool:
        """Whether some work of the team can ever start there."""
        return bool(
            self._policy.teams[team].quota.get(pool)
            or self.is_given(team, pool)
            or self.may_borrow(team, pool)
            or self.urgent_tiers(team)
        )

    def is_given(self, team: str, pool: str) -> bool:
        """Whether grants or windows give the team GPUs there, whenever that is."""
        return (team, pool) in self._given

    def may_borrow(self, team: str, pool: str) -> bool:
        """Whether some work of the team may take idle GPUs above its quota."""
        return (
            self.is_borrowing_on(team, pool)
            and self._policy.teams[team].borrow_limit.get(pool) != 0
            and self.has_tiers_that_borrow(team, pool)
        )

    def is_borrowing_on(self, team: str, pool: str) -> bool:
        """Whether the rules for borrowing there leave it to the team at all."""
        return self._policy.borrowing_rules(team, pool).mode != "off"

    def lends(self, team: str, pool: str) -> bool:
        """Whether there is another team that may borrow there what this one does not use."""
        return any(
            self.is_borrowing_on(other, pool) for other in self._policy.teams if other != team
        )

    def has_tiers_that_borrow(self, team: str, pool: str) -> bool:
        """Whether the rules for borrowing leave it to one of the team's tiers."""
        tiers = self._policy.borrowing_rules(team, pool).tiers
        return tiers == "all" or not set(tiers).isdisjoint(self._policy.teams[team].tiers)

    def urgent_tiers(self, team: str) -> list[str]:
        """The team's tiers that the rules for borrowing do not bind."""
        tiers = self._policy.tiers
        return [name for name in self._policy.teams[team].tiers if tiers[name].may_preempt]
