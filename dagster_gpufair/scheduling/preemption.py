"""Which leases may be stopped for a request, by which rule, and which of them are.

The rules, each of which a lease must fall under besides not being protected:

- *reclaim*: the asker is guaranteed, and the lease is in another account's borrowed part. From other
  teams a team reclaims only while its total stays within its quota.
- *priority*: the same account, fewer tier points, and stopped always or in the borrowed part. The asker
  counts as guaranteed if it would be once they are gone.
- *urgent*: the asker's tier may preempt; fewer tier points, and stopped always or in the borrowed part.
- *rebalance*, if switched on: both borrow, not fewer points for the asker, and after the swap the
  asker's account is not better served above its quota than the victim's.
- *term*: the lease is borrowed, and its borrowing time is over.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from dagster_gpufair.policy.models import Tier
from dagster_gpufair.scheduling.coverage import Borrowed
from dagster_gpufair.scheduling.holding import Holding
from dagster_gpufair.scheduling.horizon import Asker, Future, earliest
from dagster_gpufair.scheduling.model import Class, Lease, Victim

if TYPE_CHECKING:
    from dagster_gpufair.scheduling.snapshot import Snapshot

_NO_TIER = Tier()


class Found(NamedTuple):
    """The victims for an asker, and the placement that it gets once they are gone."""

    victims: list[Victim]
    nodes: dict[str, int]


class Preemption:
    """The rules of preemption over one snapshot."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        rules = snapshot.policy.preemption
        self.on = rules.mode != "off"
        self.by_itself = rules.mode == "auto"
        self.grace = rules.grace.total_seconds()
        self.min_runtime = rules.min_runtime.total_seconds()
        self._rebalance = rules.rebalance
        self._max_per_run = rules.max_per_run
        term = snapshot.policy.borrowing.max_duration
        self._stoppable_in: dict[str, tuple[int, list[Lease]]] = {}
        self._outranked_by: dict[tuple[Holding, float], tuple[int, int]] = {}
        self._term = None if term is None else term.total_seconds()

    @property
    def stops_work(self) -> bool:
        """Whether anything may be stopped at all."""
        return self.on or self._term is not None

    def may_act(self, asker: Asker) -> bool:
        """Whether there could be victims for it; if not, there are none."""
        if not self.may_stop_in(asker.pool):
            return False
        if self.on and (asker.class_ <= Class.SHARED or self._rebalance):
            return True
        if self._term is not None and any(
            self.term_is_over(lease) for lease in self._snapshot.leases_in(asker.pool)
        ):
            return True
        return self.outranks_its_own(asker)

    def may_stop_in(self, pool: str) -> bool:
        """Whether anything in the pool may be stopped for anybody now."""
        return self.stops_work and bool(self._stoppable(pool))

    def outranks_its_own(self, asker: Asker) -> bool:
        """Whether its account runs something that may be stopped for it by priority."""
        return self.on and self._outranked(asker) > 0

    def rule(self, asker: Asker, lease: Lease, borrowed: Borrowed) -> str | None:
        """The rule by which the lease may be stopped for the asker, whatever its age, if there is one.

        ``borrowed`` is what its team has borrowed in the pool.
        """
        if lease.pool != asker.pool or self._tier(lease).preemptible == "never":
            return None
        holding = self._snapshot.accounts.holding(lease, lease.pool)
        same_team = lease.team == asker.request.team
        lent_by_asker = lease.id in (borrowed.inside if same_team else borrowed.from_others)
        if self.on:
            rule = self._rule_of_rank(asker, lease, holding is asker.holding, lent_by_asker)
            if rule is not None:
                return rule
        return "term" if self.term_is_over(lease) and lease.id in borrowed.from_others else None

    def gone_by(self, asker: Asker, lease: Lease) -> float | None:
        """When a lease is over at the latest, also if the asker has it stopped as soon as it may."""
        ends = lease.ends
        if not self.by_itself or lease.notice_until is not None:
            return ends
        borrowed = self._snapshot.borrowed_to_the_end(lease)
        if self.rule(asker, lease, borrowed) not in ("reclaim", "priority", "urgent"):
            return ends
        stopped = max(self._snapshot.now, lease.started + self.min_runtime) + self.grace
        return stopped if ends is None else min(ends, stopped)

    def term_is_over(self, lease: Lease) -> bool:
        """Whether it has lasted as long as GPUs may be borrowed, were it borrowed."""
        if self._term is None:
            return False
        since = lease.started if lease.term_from is None else lease.term_from
        return since + self._term <= self._snapshot.now

    def renewed(self) -> list[str]:
        """Borrowed leases whose borrowing time is over, and that nobody could start with."""
        if self._term is None:
            return []
        snapshot = self._snapshot
        return sorted(
            lease.id
            for pool in snapshot.policy.pools
            for lease in snapshot.leases_in(pool)
            if self.term_is_over(lease)
            and lease.notice_until is None
            and not snapshot.is_spoken_for(lease)
            and lease.id in snapshot.borrowed(lease.team, pool).from_others
        )

    def find(self, asker: Asker) -> Found | None:
        """The least harm that lets the asker start, or None.

        None as well if enough ends by itself while the victims would still have their grace.
        """
        if not self.may_stop_in(asker.pool):
            return None
        snapshot = self._snapshot
        room, candidates = snapshot.room(asker.pool), self._candidates(asker)
        freed = sum(sum(room.where(candidate.lease).values()) for candidate in candidates)
        if not candidates or asker.gpus > room.free + freed:
            return None
        soon = snapshot.now + self.grace
        blocks = snapshot.reservations.blocks(asker)
        if earliest(snapshot, asker, lambda lease: lease.ends, blocks, until=soon) is not None:
            return None
        for is_fair_at_every_step in (False, True):
            attempt = _Attempt(snapshot, asker, self.grace, is_fair_at_every_step)
            if any(attempt.take(candidate) for candidate in candidates):
                found = attempt.give_back()
                if found is not None:
                    return found
            if not any(candidate.rule == "rebalance" for candidate in candidates):
                return None
        return None

    def _candidates(self, asker: Asker) -> list[Victim]:
        """All that may be stopped for it now, the least harm first."""
        snapshot = self._snapshot
        found = [
            Victim(lease, rule)
            for lease in self._stoppable(asker.pool)
            if (rule := self.rule(asker, lease, snapshot.borrowed(lease.team, lease.pool)))
        ]
        if asker.holding.team.covers(asker.gpus) is Class.BORROWING:
            # What the team has beyond its quota goes before it claims anything from other teams.
            found.sort(key=lambda victim: victim.lease.team != asker.request.team)
        return found

    def _stoppable(self, pool: str) -> list[Lease]:
        """What may be stopped for anybody at all now, the least harm first."""
        version, leases = self._stoppable_in.get(pool, (-1, []))
        if version != self._snapshot.version(pool):
            leases = [
                lease
                for lease in self._snapshot.leases_in(pool)
                if self._tier(lease).preemptible != "never"
                and not self._is_protected(lease)
                and (
                    self._tier(lease).preemptible == "always"
                    or lease.id in self._snapshot.borrowed(lease.team, pool).inside
                )
            ]
            leases.sort(key=self._harm)
            self._stoppable_in[pool] = (self._snapshot.version(pool), leases)
        return leases

    def _is_protected(self, lease: Lease) -> bool:
        return (
            lease.notice_until is not None
            or self._snapshot.now - lease.started < self.min_runtime
            or self._snapshot.is_spoken_for(lease)
        )

    def _harm(self, lease: Lease) -> tuple[bool, float, float, float, float, float, str]:
        """The less, the earlier it is stopped."""
        holding = self._snapshot.accounts.holding(lease, lease.pool)
        return (
            lease.preempted >= self._max_per_run,
            self._tier(lease).points,
            -holding.saturation,
            -holding.inside,
            lease.gpus * (self._snapshot.now - lease.since_saved),
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
        covered = self._best_class(asker)
        if covered is Class.GUARANTEED or (
            covered is Class.SHARED and lease.team != asker.request.team
        ):
            return "reclaim"
        if self._rebalance and covered is Class.BORROWING and of_lease <= points:
            return "rebalance"
        return None

    def _best_class(self, asker: Asker) -> Class:
        """What covers it, at best once all that it outranks in its own account is gone."""
        covered = asker.holding.covers(asker.gpus)
        if covered is Class.GUARANTEED:
            return covered
        less = self._outranked(asker)
        return asker.holding.covers(asker.gpus, less, less) if less else covered

    def _outranked(self, asker: Asker) -> int:
        """The GPUs of leases of its own account that could be stopped for it by priority."""
        points, version = self._points(asker), self._snapshot.version(asker.pool)
        known, gpus = self._outranked_by.get((asker.holding, points), (-1, 0))
        if known != version:
            gpus = self._count_outranked(asker, points)
            self._outranked_by[asker.holding, points] = (version, gpus)
        return gpus

    def _count_outranked(self, asker: Asker, points: float) -> int:
        inside = self._snapshot.borrowed(asker.request.team, asker.pool).inside
        return sum(
            lease.gpus
            for lease in self._snapshot.leases_of(asker.holding)
            if (tier := self._tier(lease)).points < points
            and tier.preemptible != "never"
            and (tier.preemptible == "always" or lease.id in inside)
            and not self._is_protected(lease)
        )

    def _points(self, asker: Asker) -> float:
        tier = self._snapshot.policy.tiers.get(asker.request.tier, _NO_TIER)
        return tier.points

    def _tier(self, lease: Lease) -> Tier:
        return self._snapshot.policy.tiers.get(lease.tier, _NO_TIER)


class _Attempt:
    """Victims taken for an asker one after another, until it fits; then given back what is not needed.

    Whether a rebalancing is fair is judged once it is known who has to leave; or, if that finds nobody,
    ``at_every_step``, so that what would not be fair is never taken.
    """

    def __init__(self, snapshot: Snapshot, asker: Asker, grace: float, at_every_step: bool) -> None:
        self._snapshot = snapshot
        self._asker = asker
        self._grace = grace
        self._at_every_step = at_every_step
        self._future = Future(snapshot, asker.pool)
        self._taken: dict[str, Victim] = {}
        self._order: list[str] = []
        self._reclaims = {True: 0, False: 0}

    def take(self, victim: Victim) -> bool:
        """Take one more; whether the asker fits now."""
        self._order.append(victim.lease.id)
        self._add(victim)
        if self._at_every_step and victim.rule == "rebalance" and not self._is_fair():
            self._undo(victim)
            return False
        return self._place() is not None

    def give_back(self) -> Found | None:
        """Of those taken, all that are needed, and the placement then; None if that would not be fair."""
        for victim in reversed(list(self._taken.values())):
            self._undo(victim)
            if not self._taken or self._place() is None:
                self._add(victim)
        nodes = self._place()
        if nodes is None or not self._is_fair():
            return None
        # In the order in which they were taken: the least harm first.
        needed = [self._taken[id] for id in self._order if id in self._taken]
        return Found(needed, nodes)

    def _place(self) -> dict[str, int] | None:
        """Where the asker would start without those taken, if the rules and the space allow it."""
        asker, future, snapshot = self._asker, self._future, self._snapshot
        if asker.gpus > future.left_for(asker) or not self._is_allowed():
            return None
        begins = snapshot.now + self._grace
        limits = snapshot.reservations.limits(asker, begins, future.room, self._freed())
        if limits is None or asker.gpus > limits.most:
            return None
        if asker.gpus > snapshot.most_before_windows(asker, begins, self._freed()):
            return None
        return future.room.place(asker.gpus, asker.request.gpus_per_node, limits.on_nodes)

    def _freed(self) -> Iterator[Lease]:
        return (victim.lease for victim in self._taken.values())

    def _add(self, victim: Victim) -> None:
        self._future.end(victim.lease)
        self._taken[victim.lease.id] = victim
        self._count(victim, 1)

    def _undo(self, victim: Victim) -> None:
        self._future.undo(victim.lease)
        del self._taken[victim.lease.id]
        self._count(victim, -1)

    def _count(self, victim: Victim, by: int) -> None:
        """How many are reclaimed from siblings, and from other teams."""
        if victim.rule == "reclaim":
            self._reclaims[victim.lease.team == self._asker.request.team] += by

    def _is_allowed(self) -> bool:
        asker, future = self._asker, self._future
        if future.class_of(asker) is None:
            return False
        holding, team = asker.holding, asker.holding.team
        less, team_less = future.released(holding), future.released(team)
        covered = holding.covers(asker.gpus, less, team_less)
        if self._reclaims[True] and covered is not Class.GUARANTEED:
            return False
        total = team.claimed - team_less + asker.gpus
        return not self._reclaims[False] or (covered <= Class.SHARED and total <= team.quota)

    def _is_fair(self) -> bool:
        """Whether after the swap its account is not better served above quota than any it rebalances."""
        accounts, future = self._snapshot.accounts, self._future
        for victim in self._taken.values():
            if victim.rule != "rebalance":
                continue
            mine, theirs = self._asker.holding, accounts.holding(victim.lease, victim.lease.pool)
            if mine.team is not theirs.team:
                mine, theirs = mine.team, theirs.team
            after = (mine.claimed - future.released(mine) + self._asker.gpus - mine.quota) / (
                mine.effective_weight
            )
            left = (theirs.claimed - future.released(theirs) - theirs.quota) / (
                theirs.effective_weight
            )
            if max(0.0, after) > max(0.0, left):
                return False
        return True
