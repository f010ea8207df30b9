"""Ceilings: the most that the running work of a team may declare together, beside GPUs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from dagster_gpufair.policy.models import Policy
from dagster_gpufair.policy.quantities import ONE_GPU
from dagster_gpufair.scheduling.model import Lease, Request

DECLARED = ("cpus", "memory_gib", "gpu_memory_gib")
"""What is summed up. GPU memory follows from the GPUs and the pool they are in."""

SLACK = 1e-9
"""Sums of decimals are not exact: this part of a ceiling may be missing."""


class Exceeded(NamedTuple):
    """A ceiling that a request would exceed."""

    what: str
    used: float
    asked: float
    most: float


class Ceilings:
    """What the work of each team that has ceilings declares, as starts leave it."""

    def __init__(self, policy: Policy, leases: Iterable[Lease]) -> None:
        self._memory_of_gpu = {
            name: pool.gpu_memory_gib or 0.0 for name, pool in policy.pools.items()
        }
        self._most: dict[str, dict[str, float]] = {}
        for name, team in policy.teams.items():
            most = {what: getattr(team.ceilings, what) for what in DECLARED}
            most = {what: amount for what, amount in most.items() if amount is not None}
            if most:
                self._most[name] = most
        self._used = {name: dict.fromkeys(most, 0.0) for name, most in self._most.items()}
        if self._most:
            for lease in sorted(leases, key=lambda lease: lease.id):
                self.take(lease, lease.pool, lease.gpus)

    def of_team(self, team: str) -> list[tuple[str, float, float]]:
        """Its ceilings: what they are of, how much is used, and the most."""
        used = self._used.get(team, {})
        return [(what, used[what], most) for what, most in self._most.get(team, {}).items()]

    def exceeded(self, request: Request, pool: str, gpus: int) -> Exceeded | None:
        """The first ceiling of its team that the request would exceed with so many GPUs of a pool."""
        most = self._most.get(request.team)
        if most is None:
            return None
        for what, limit in most.items():
            used, asked = self._used[request.team][what], self._declared(request, what, pool, gpus)
            if asked > 0 and used + asked > limit * (1 + SLACK):
                return Exceeded(what, used, asked, limit)
        return None

    def take(self, of: Request | Lease, pool: str, gpus: int) -> None:
        """Count what starts, or is promised to start."""
        used = self._used.get(of.team)
        if used is not None:
            for what in used:
                used[what] += self._declared(of, what, pool, gpus)

    def give(self, of: Request | Lease, pool: str, gpus: int) -> None:
        """Count it no more."""
        used = self._used.get(of.team)
        if used is not None:
            for what in used:
                used[what] -= self._declared(of, what, pool, gpus)

    def _declared(self, of: Request | Lease, what: str, pool: str, gpus: int) -> float:
        if what == "cpus":
            return of.cpus
        if what == "memory_gib":
            return of.memory_gib
        return gpus / ONE_GPU * self._memory_of_gpu.get(pool, 0.0)
