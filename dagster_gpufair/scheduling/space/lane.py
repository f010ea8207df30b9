"""The fast lane of a pool: GPUs that are free only for what is small and short.

Small and short runs count as in it, as far as it has room; so do GPUs that are promised to such requests,
minus those in it that their victims will free.
"""

from __future__ import annotations

from dagster_gpufair.policy.models import FastLane
from dagster_gpufair.scheduling.model import Lease


class Lane:
    """The lane of one pool, which may have none, and what is used of it."""

    def __init__(self, rule: FastLane | None) -> None:
        self.rule = rule
        self._held = 0
        self._promised: dict[str, int] = {}
        self._leaving: dict[str, int] = {}

    def copy(self) -> Lane:
        """The same, to try something on."""
        other = Lane(self.rule)
        other._held = self._held
        other._promised, other._leaving = dict(self._promised), dict(self._leaving)
        return other

    def is_for(self, gpus: int, max_duration: float | None) -> bool:
        """Whether it is for requests of this size and length."""
        rule = self.rule
        return (
            rule is not None
            and gpus <= rule.max_gpus
            and max_duration is not None
            and max_duration <= rule.max_duration.total_seconds()
        )

    @property
    def left(self) -> int:
        """What is free in it."""
        if self.rule is None:
            return 0
        promised = sum(
            max(0, gpus - self._leaving.get(owner, 0)) for owner, gpus in self._promised.items()
        )
        return max(0, self.rule.gpus - self._held - promised)

    def hold(self, lease: Lease) -> None:
        """A lease runs."""
        if self.is_for(lease.gpus, lease.max_duration):
            self._held += lease.gpus

    def end(self, lease: Lease) -> None:
        """It runs no more."""
        if self.is_for(lease.gpus, lease.max_duration):
            self._held -= lease.gpus

    def leave(self, lease: Lease, sign: int) -> None:
        """It is to leave for somebody; it is not after all, if the sign is negative."""
        owner = lease.notice_for
        if owner is not None and self.is_for(lease.gpus, lease.max_duration):
            self._leaving[owner] = self._leaving.get(owner, 0) + sign * lease.gpus

    def promise(self, owner: str, gpus: int, max_duration: float | None) -> None:
        """GPUs are promised to a request of this length."""
        if self.is_for(gpus, max_duration):
            self._promised[owner] = gpus

    def unpromise(self, owner: str) -> None:
        """Nothing is promised to it any more."""
        self._promised.pop(owner, None)
