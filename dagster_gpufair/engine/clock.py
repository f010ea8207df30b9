"""The time of day of this daemon, and whether somebody has set it.

Durations are differences of the time of day, so when that is set, all times from which something is still
counted are moved with it. How far it was set is known from the time since the boot, which nobody sets.
"""

from __future__ import annotations

import time

from dagster_gpufair.ledger.writer import since_boot

JUMP = 5.0
"""Seconds between two looks from which it is a jump; less is a clock that is being adjusted."""


class WallClock:
    """Tells how far the time of day was set since the last look."""

    def __init__(self) -> None:
        self._before: tuple[str, float] | None = None
        self._now: tuple[str, float] | None = None

    @property
    def mark(self) -> dict[str, object] | None:
        """What to remember of the last look, for whoever looks next on this machine."""
        return None if self._now is None else {"boot": self._now[0], "ahead": self._now[1]}

    def resume(self, mark: object) -> None:
        """Go on from what was remembered, perhaps by an earlier process."""
        if self._before is None and isinstance(mark, dict):
            self._before = (str(mark.get("boot")), float(mark.get("ahead", 0.0)))

    def jumped(self) -> float:
        """Seconds by which it was set forward (back if negative) since the last look that was heeded."""
        elapsed, boot = since_boot()
        self._now = (boot, time.time() - elapsed)
        if self._before is None or self._before[0] != boot:
            return 0.0
        by = self._now[1] - self._before[1]
        return by if abs(by) >= JUMP else 0.0

    def heeded(self) -> None:
        """What the last look found is in the ledger."""
        self._before = self._now
