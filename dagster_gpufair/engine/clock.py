"""Whether somebody has set the time of day.

Durations are differences of the time of day, so when that is set, all times from which something is still
counted are moved with it. How far it was set is known from a clock that nobody sets, the one that turns are
measured by: the database's, so that another machine's time of day is found to differ too, or the time since
the boot.
"""

from __future__ import annotations

import time
from typing import Any

from dagster_gpufair.ledger.writer import Clock

JUMP = 5.0
"""Seconds from which it counts; what is less adds up until it is so much."""


def jumped(mark: Any, clock: Clock) -> tuple[float, dict[str, Any]]:
    """How many seconds the time of day was set forward (back if negative), and the mark to remember.

    Args:
        mark: what was remembered last, by whatever daemon; None if nothing was.
        clock: the one that nobody sets, now.
    """
    now = {"whose": clock.whose, "ahead": time.time() - clock.now}
    if not isinstance(mark, dict) or mark.get("whose") != clock.whose:
        return 0.0, now
    by = now["ahead"] - mark["ahead"]
    return (by, now) if abs(by) >= JUMP else (0.0, mark)
