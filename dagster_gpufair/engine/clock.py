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
        self._last: tuple[str, float] | None = None

    @property
    def mark(self) -> dict[str, object] | None:
        """What to remember of it, for whoever looks next on this machine."""
        return None if self._last is None else {"boot": self._last[0], "ahead": self._last[1]}

    def resume(self, mark: object) -> None:
        """Go on from what was remembered, perhaps by an earlier process."""
        if self._last is None and isinstance(mark, dict):
            self._last = (str(mark.get("boot")), float(mark.get("ahead", 0.0)))

    def jumped(self) -> float:
        """Seconds by which it was set forward (back if negative) since the last look; 0 if it was not."""
        elapsed, boot = since_boot()
        ahead = time.time() - elapsed
        before, self._last = self._last, (boot, ahead)
        if before is None or before[0] != boot or abs(ahead - before[1]) < JUMP:
            return 0.0
        return ahead - before[1]
