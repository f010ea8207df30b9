"""Times as people read them: an absolute one names its zone, others say how long ago or how long."""

from __future__ import annotations

import time

from dagster_gpufair.policy.quantities import duration_in_words, format_duration


def age(seconds: float) -> str:
    """``41m``, ``1h12m``, ``3d4h``, for a column; below a minute ``42s``."""
    return format_duration(_whole(seconds))


def age_in_words(seconds: float) -> str:
    """``41 min``, ``1 h 12 min``, ``3 days 4 h``, for a sentence; below a minute ``42 s``."""
    return duration_in_words(_whole(seconds))


def after(seconds: float) -> str:
    """``after it waited 41 min``, or ``at once``."""
    return f"after it waited {age_in_words(seconds)}" if seconds >= 1 else "at once"


def clock(at: float, now: float, seconds: bool = False) -> str:
    """``14:20 CET``: a time of day in the local zone, with the day where it is not that of ``now``."""
    when = time.localtime(at)
    day = "" if when[:3] == time.localtime(now)[:3] else "%Y-%m-%d "
    return time.strftime(f"{day}%H:%M:%S %Z" if seconds else f"{day}%H:%M %Z", when)


def _whole(seconds: float) -> int:
    """Whole minutes, or whole seconds below a minute."""
    whole = max(0, int(seconds))
    return whole if whole < 60 else whole // 60 * 60


def moment(at: float) -> str:
    """``2026-06-01 14:20:05 CEST``: with day and seconds, for a record that is read later."""
    return time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(at))
