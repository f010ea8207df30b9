"""Who comes first: the points of a request, and how two requests compare.

Compared are, in this order: class; among those that borrow, the saturation of their accounts (less
first); the score (more first); the submission (earlier first); the id.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from dagster_gpufair.policy.models import Policy
from dagster_gpufair.scheduling.accounts import Holding
from dagster_gpufair.scheduling.model import Ageing, Class, Points, Request

PREEMPTIONS_COUNTED = 3
NEVER = -math.inf


class Standing(NamedTuple):
    """What a request is judged by in one pool."""

    class_: Class
    saturation: float
    points: Points
    submitted: float
    id: str

    @property
    def key(self) -> tuple[int, float, float, float, str]:
        """The lower comes first."""
        return (
            self.class_,
            counted_saturation(self.class_, self.saturation),
            -self.points.score,
            self.submitted,
            self.id,
        )


def counted_saturation(class_: Class, saturation: float) -> float:
    """Only those that borrow are held against what their account has above its quota."""
    return saturation if class_ is Class.BORROWING else 0.0


class Order:
    """The policy's points, at one moment."""

    def __init__(self, policy: Policy, now: float) -> None:
        self._rules = policy.ordering
        self._now = now
        self._tiers = policy.tiers
        self._tier_points = {name: tier.points for name, tier in policy.tiers.items()}
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

    def points(
        self, request: Request, holding: Holding, ageing: Ageing, source: float = 0.0
    ) -> Points:
        """The request's points in its account's pool, each by its own rule.

        Those for its source are given, since they change whenever the account starts something.
        """
        return Points(
            self._tier_points.get(request.tier, 0.0),
            ageing.wait(request.submitted),
            self._rules.share_points * min(max(holding.owed, -1.0), 1.0),
            self._rules.preempted_points * min(request.preempted, PREEMPTIONS_COUNTED),
            ageing.deadline(request.submitted),
            source,
        )

    def source_points(self, source: str | None, holding: Holding) -> float:
        """Less by the part of the account's use in the pool that the same source already holds."""
        held = holding.by_source.get(source, 0) if source is not None else 0
        return -self._rules.source_points * held / holding.use if held else 0.0
