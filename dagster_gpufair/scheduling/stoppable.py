"""Which leases may be stopped for a request, and by which rule.

The rules, each of which a lease must fall under besides not being protected:

- *reclaim*: the asker is guaranteed, and the lease is in another account's borrowed part. From other
  teams a team reclaims only while its total stays within its quota.
- *priority*: the same account, fewer tier points, and stopped always or in the borrowed part. The asker
  counts as guaranteed if it would be once they are gone.
- *urgent*: the asker's tier may preempt; fewer tier points, and stopped always or in the borrowed part.
- *rebalance*, if switched on: both borrow, not fewer points for the asker, and after the swap the
  asker's account is not better served above its quota than the victim's.
- *term*: the lease is borrowed, its borrowing time is over, and it could not stop the asker in return.

Each pool may have rules of its own, and each team a borrowing time. Nothing is stopped, by whichever rule,
for tiers that are not among the ``askers``.
"""

from __future__ import annotations

from dagster_gpufair.policy.models import Policy, Tier
from dagster_gpufair.scheduling.accounts.asker import Asker
from dagster_gpufair.scheduling.accounts.coverage import IsBorrowed
from dagster_gpufair.scheduling.accounts.holding import Holding
from dagster_gpufair.scheduling.model import Class, Lease
from dagster_gpufair.scheduling.present import Present

_NO_TIER = Tier()


class _Rules:
    """The rules of preemption in one pool.

    ``terms`` says for each team how many seconds it may borrow there, where that is limited.
    """

    def __init__(self, policy: Policy, pool: str) -> None:
        rules = policy.stop_rules(pool)
        self.on = policy.stops_for_others(pool)
        self.by_itself = self.on and rules.mode == "auto"
        self.grace = rules.grace.total_seconds()
        self.min_runtime = rules.min_runtime.total_seconds()
        self.rebalance = rules.rebalance
        self.max_per_run = rules.max_per_run
        self._askers = rules.askers
        self.hears_all = rules.askers == "all" or set(rules.askers) >= policy.tiers.keys()
        self.terms: dict[str, float] = {}
        if policy.stops_at_term(pool):
            for team in policy.teams:
                term = policy.borrowing_rules(team, pool).max_duration
                if term is not None:
                    self.terms[team] = term.total_seconds()

    def hears(self, asker: Asker) -> bool:
        """Whether anybody may be stopped for it at all."""
        return self.hears_all or self.hears_tier(asker.request.tier)

    def hears_tier(self, tier: str) -> bool:
        """Whether anybody may be stopped for work of a tier at all."""
        return self._askers == "all" or tier in self._askers


class Stoppable:
    """The rules of preemption, at one moment."""

    def __init__(self, present: Present) -> None:
        self._present = present
        policy = present.policy
        self._rules = {pool: _Rules(policy, pool) for pool in policy.pools}
        self._stoppable_in: dict[str, tuple[int, list[Lease]]] = {}
        self._outranked_by: dict[tuple[Holding, float], tuple[int, int]] = {}

    @property
    def stops_work(self) -> bool:
        """Whether anything may be stopped at all."""
        return any(self.stops_work_in(pool) for pool in self._rules)

    def stops_work_in(self, pool: str) -> bool:
        """Whether anything in the pool may be stopped at all."""
        rules = self._in(pool)
        return rules.on or bool(rules.terms)

    def by_itself_in(self, pool: str) -> bool:
        """Whether what is stopped in the pool for others is stopped without anybody's being asked."""
        return self._in(pool).by_itself

    def may_act(self, asker: Asker) -> bool:
        """Whether there could be victims for it; if not, there are none."""
        rules = self._in(asker.pool)
        if not rules.hears(asker) or not self.may_stop_in(asker.pool):
            return False
        if rules.on and (asker.class_ <= Class.SHARED or rules.rebalance):
            return True
        if self.is_covered_soon(asker):
            return True
        if rules.terms and any(
            self.term_is_over(lease) for lease in self._present.running.in_pool(asker.pool)
        ):
            return True
        return self.outranks_its_own(asker)

    def may_stop_in(self, pool: str) -> bool:
        """Whether anything in the pool may be stopped for anybody now."""
        return self.stops_work_in(pool) and bool(self.stoppable(pool))

    def outranks_its_own(self, asker: Asker) -> bool:
        """Whether its account runs something that may be stopped for it by priority."""
        return self._in(asker.pool).on and self._outranked(asker) > 0

    def rule(self, asker: Asker, lease: Lease, borrowed: IsBorrowed) -> str | None:
        """The rule by which the lease may be stopped for the asker, whatever its age, if there is one.

        ``borrowed`` says in which ways it is borrowed.
        """
        if lease.pool != asker.pool or self._tier(lease).preemptible == "never":
            return None
        rules = self._in(asker.pool)
        if not rules.hears(asker):
            return None
        holding = self._present.accounts.holding(lease, lease.pool)
        same_team = lease.team == asker.request.team
        from_asker = borrowed.inside if same_team else borrowed.from_others
        is_term = (
            bool(rules.terms)
            and borrowed.from_others
            and self.term_is_over(lease)
            and not self._would_stop_in_return(lease, asker)
        )
        if is_term and not rules.by_itself:
            return "term"  # It needs nobody's approval.
        if rules.on:
            rule = self._rule_of_rank(asker, lease, holding is asker.holding, from_asker)
            if rule is not None:
                return rule
        return "term" if is_term else None

    def _would_stop_in_return(self, lease: Lease, asker: Asker) -> bool:
        """Whether the lease, come back as a request, could have the asker stopped."""
        mine, its = self._tier_of(asker.request.tier), self._tier(lease)
        rules = self._in(lease.pool)
        if not rules.on or not rules.hears_tier(lease.tier):
            return False
        if mine.preemptible == "never" or its.points <= mine.points:
            return False
        if mine.preemptible == "borrowed" and self.best_class(asker) is not Class.BORROWING:
            return False
        same = self._present.accounts.holding(lease, lease.pool) is asker.holding
        return its.may_preempt or same

    def best_class(self, asker: Asker) -> Class:
        """Its class when those who are given notice now have to be gone; at best, once all that it
        outranks in its own account is gone as well.
        """
        holding, soon = asker.holding, self._present.soon(asker.pool)
        own, of_team = soon.less(holding), soon.less(holding.team)
        covered = holding.covers(asker.gpus, own, of_team)
        if covered is Class.GUARANTEED:
            return covered
        less = self._outranked(asker)
        return holding.covers(asker.gpus, own + less, of_team + less) if less else covered

    def is_covered_soon(self, asker: Asker) -> bool:
        """Whether it is within a quota when somebody who is given notice now has to be gone."""
        return self._in(asker.pool).on and self.best_class(asker) <= Class.SHARED

    def gone_by(self, asker: Asker, lease: Lease) -> float | None:
        """When a lease is over at the latest, also if the asker has it stopped as soon as it may."""
        ends = lease.ends
        rules = self._in(lease.pool)
        if not rules.by_itself or lease.notice_until is not None or lease.overdue:
            return ends
        if self._tier(lease).preemptible == "never":
            return ends
        borrowed = self._present.running.borrowed_to_the_end(lease)
        if self.rule(asker, lease, borrowed) not in ("reclaim", "priority", "urgent"):
            return ends
        stopped = max(self._present.now, self._untouched_until(lease)) + rules.grace
        return stopped if ends is None else min(ends, stopped)

    def could_be_reclaimed_by(self, lease: Lease, at: float) -> bool:
        """Whether a lease, or one that could start, can be stopped by then for work within a quota."""
        rules = self._in(lease.pool)
        return (
            rules.by_itself
            and rules.hears_all
            and self._tier(lease).preemptible != "never"
            and self._present.running.borrowed_to_the_end(lease).from_others
            and self._untouched_until(lease) + rules.grace <= at
        )

    def term_is_over(self, lease: Lease) -> bool:
        """Whether it has lasted as long as GPUs may be borrowed, were it borrowed."""
        term = self._in(lease.pool).terms.get(lease.team)
        if term is None:
            return False
        since = lease.started if lease.term_from is None else lease.term_from
        return since + term <= self._present.now

    def renewed(self) -> list[str]:
        """Borrowed leases whose borrowing time is over, and that nobody could start with."""
        present = self._present
        return sorted(
            lease.id
            for pool, rules in self._rules.items()
            if rules.terms
            for lease in present.running.in_pool(pool)
            if self.term_is_over(lease)
            and lease.notice_until is None
            and not present.is_spoken_for(lease)
            and present.running.borrowed_now(lease).from_others
        )

    def stoppable(self, pool: str) -> list[Lease]:
        """What may be stopped for anybody at all now, the least harm first."""
        version, leases = self._stoppable_in.get(pool, (-1, []))
        if version != self._present.running.version(pool):
            leases = [
                lease
                for lease in self._present.running.in_pool(pool)
                if self._tier(lease).preemptible != "never"
                and not self._is_protected(lease)
                and (
                    self._tier(lease).preemptible == "always"
                    or self._present.running.borrowed_now(lease).inside
                )
            ]
            leases.sort(key=self._harm)
            self._stoppable_in[pool] = (self._present.running.version(pool), leases)
        return leases

    def _is_protected(self, lease: Lease) -> bool:
        return (
            self._present.room(lease.pool).is_leaving(lease)
            or lease.overdue
            or lease.starting
            or self._present.now < self._untouched_until(lease)
            or self._present.is_spoken_for(lease)
        )

    def _untouched_until(self, lease: Lease) -> float:
        """Until when nobody is given notice: for its least time, and as long as its owner keeps it."""
        return max(lease.works_from + self._in(lease.pool).min_runtime, lease.kept_until or 0.0)

    def _harm(self, lease: Lease) -> tuple[bool, float, float, float, float, float, str]:
        """The less, the earlier it is stopped."""
        holding = self._present.accounts.holding(lease, lease.pool)
        return (
            lease.preempted >= self._in(lease.pool).max_per_run,
            self._tier(lease).points,
            -holding.saturation,
            -holding.inside,
            lease.gpus * (self._present.now - lease.since_saved),
            -lease.started,
            lease.id,
        )

    def _rule_of_rank(
        self, asker: Asker, lease: Lease, same_account: bool, borrowed: bool
    ) -> str | None:
        always = self._tier(lease).preemptible == "always"
        points, of_lease = self._points(asker), self._tier(lease).points
        fewer = of_lease < points
        if asker.rights.urgent and fewer and (always or borrowed):
            return "urgent"
        if same_account:
            return "priority" if fewer and (always or borrowed) else None
        if not borrowed:
            return None
        covered = self.best_class(asker)
        if covered is Class.GUARANTEED or (
            covered is Class.SHARED and lease.team != asker.request.team
        ):
            return "reclaim"
        if self._in(lease.pool).rebalance and covered is Class.BORROWING and of_lease <= points:
            return "rebalance"
        return None

    def _outranked(self, asker: Asker) -> int:
        """The GPUs of leases of its own account that could be stopped for it by priority."""
        if not self._in(asker.pool).hears(asker):
            return 0
        points, version = self._points(asker), self._present.running.version(asker.pool)
        known, gpus = self._outranked_by.get((asker.holding, points), (-1, 0))
        if known != version:
            gpus = self._count_outranked(asker, points)
            self._outranked_by[asker.holding, points] = (version, gpus)
        return gpus

    def _count_outranked(self, asker: Asker, points: float) -> int:
        inside = self._present.running.borrowed(asker.request.team, asker.pool).inside
        return sum(
            lease.gpus
            for lease in self._present.running.of_account(asker.holding)
            if (tier := self._tier(lease)).points < points
            and tier.preemptible != "never"
            and (tier.preemptible == "always" or lease.id in inside)
            and not self._is_protected(lease)
        )

    def _in(self, pool: str) -> _Rules:
        rules = self._rules.get(pool)
        if rules is None:
            # Of a pool that the policy has no more.
            rules = self._rules[pool] = _Rules(self._present.policy, pool)
        return rules

    def _points(self, asker: Asker) -> float:
        return self._tier_of(asker.request.tier).points

    def _tier(self, lease: Lease) -> Tier:
        return self._tier_of(lease.tier)

    def _tier_of(self, name: str) -> Tier:
        return self._present.policy.tiers.get(name, _NO_TIER)
