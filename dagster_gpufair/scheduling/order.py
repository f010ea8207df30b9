"""Who comes first: the points of a request, and how two requests compare.

Compared are, in this order: class; among those that borrow, the saturation of their teams, then that of
their accounts inside the team (less first); the score (more first); the submission (earlier first); the id.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from dagster_gpufair.policy.models import Policy
from dagster_gpufair.scheduling.accounts.holding import Holding
from dagster_gpufair.scheduling.model import Ageing, Class, Points, Request

PREEMPTIONS_COUNTED = 3
MOST_PRIORITY = 10
"""A run's own priority counts between this and its negative."""
NEVER = -math.inf

Key = tuple[Class, float, float, float, float, str]


def comparison_key(
    class_: Class, saturation: float, inside: float, score: float, submitted: float, id: str
) -> Key:
    """What requests are compared by: the lower comes first.

    Only those that borrow are held against what their team already has above its quota, and inside the
    team their account.
    """
    if class_ is Class.BORROWING:
        return (class_, saturation, inside, -score, submitted, id)
    return (class_, 0.0, 0.0, -score, submitted, id)


class Standing(NamedTuple):
    """What a request is judged by in one pool."""

    class_: Class
    saturation: float
    points: Points
    submitted: float
    id: str
    inside: float = 0.0

    @property
    def key(self) -> Key:
        return comparison_key(
            self.class_,
            self.saturation,
            self.inside,
            self.points.score,
            self.submitted,
            self.id,
        )


class Order:
    """The policy's points, at one moment."""

    def __init__(self, policy: Policy, now: float) -> None:
        self._rules = policy.ordering
        self._tiers = policy.tiers
        self._now = now
        self._tier_points = {name: tier.points for name, tier in policy.tiers.items()}
        self._share_points = policy.ordering.share_points
        self._preempted_points = policy.ordering.preempted_points
        self._priority_points = policy.ordering.priority_points
        self._source_points = policy.ordering.source_points
        self._ageings: dict[tuple[str, float], Ageing] = {}

    def ageing(self, tier: str, since: float = NEVER) -> Ageing:
        """How requests of a tier gain from waiting, if their source last started something then."""
        ageing = self._ageings.get((tier, since))
        if ageing is None:
            start_within = self._tiers[tier].start_within if tier in self._tiers else None
            ageing = self._ageings[tier, since] = Ageing(
                now=self._now,
                since=since,
                wait_points_per_hour=self._rules.wait_points_per_hour,
                deadline_points=self._rules.deadline_points,
                start_within=None if start_within is None else start_within.total_seconds(),
            )
        return ageing

    def points(self, request: Request, holding: Holding, ageing: Ageing, source: float) -> Points:
        """The request's points in its account's pool, each by its own rule.

        Those for its source are given, since they change whenever the account starts something.
        """
        tier, share, preempted, priority = self._fixed(request, holding)
        wait, deadline = ageing.wait(request.submitted), ageing.deadline(request.submitted)
        return Points(tier, wait, share, preempted, deadline, priority, source)

    def fixed_score(self, request: Request, holding: Holding) -> float:
        """The sum of the points that neither time nor starts change."""
        tier, share, preempted, priority = self._fixed(request, holding)
        return tier + share + preempted + priority

    def _fixed(self, request: Request, holding: Holding) -> tuple[float, float, float, float]:
        return (
            self._tier_points.get(request.tier, 0.0),
            self._share_points * holding.share,
            self._preempted_points * min(request.preempted, PREEMPTIONS_COUNTED),
            self._priority_points * min(max(request.priority, -MOST_PRIORITY), MOST_PRIORITY),
        )

    def source_points(self, source: str | None, holding: Holding) -> float:
        """Less by the part of the account's use in the pool that the same source already holds."""
        held = holding.by_source.get(source, 0) if source is not None else 0
        return -self._source_points * held / holding.use if held else 0.0
