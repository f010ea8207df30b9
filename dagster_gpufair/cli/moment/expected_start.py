"""When something starts or ends: at the latest, as limits say; and about when, by what is usual."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from dagster_gpufair.cli.output.times import clock
from dagster_gpufair.policy.models import Policy
from dagster_gpufair.scheduling.explaining.forecast import STEPS, forecast
from dagster_gpufair.scheduling.model import State

_REQUESTS = 100_000
"""How many requests a forecast decides on in all its steps: about a second's work."""


class Expected(NamedTuple):
    """A start or an end, in seconds since the epoch. None where nothing tells.

    ``latest`` follows from limits alone (``gpufair/max_duration``); ``about`` from how long such runs
    have usually taken, where that is sooner. A start also supposes that no higher-priority run arrives.
    """

    latest: float | None = None
    about: float | None = None

    @classmethod
    def of(cls, latest: float | None, usual: float | None) -> Expected:
        """From a bound and what is usual."""
        says_more = usual is not None and (latest is None or usual < latest)
        return cls(latest, usual if says_more else None)

    def words(self, now: float) -> str:
        """``now``, ``about 14:20 CET``, ``by 14:20 CET``, or ``?``."""
        at = self.latest if self.about is None else self.about
        if at is None:
            return "?"
        if at <= now:
            return "now"
        return f"{'by' if self.about is None else 'about'} {clock(at, now)}"

    def sentence(self, now: float) -> str:
        """The same, with what it rests on."""
        if self.latest is None and self.about is None:
            return "When it starts is not known."
        latest = (
            f"by {clock(self.latest, now)} at the latest, if running jobs use their full max_duration"
            if self.latest is not None
            else ""
        )
        if self.about is None:
            return f"It starts {latest} and no higher-priority run arrives."
        return (
            f"It starts about {clock(self.about, now)}, if running jobs take as long as they usually "
            f"do and no higher-priority run arrives{f'; {latest}' if latest else ''}."
        )


UNKNOWN = Expected()


def expected_starts(
    policy: Policy,
    state: State,
    now: float,
    usual_ends: Mapping[str, float],
    usual_lengths: Mapping[str, float] | None = None,
) -> Mapping[str, Expected]:
    """All that is known of when requests start, by their ids."""
    steps = min(max(_REQUESTS // (len(state.requests) + 1), 1), STEPS)
    latest = forecast(policy, state, now, steps)
    is_any_usual = usual_ends or usual_lengths
    usual = forecast(policy, state, now, steps, usual_ends, usual_lengths) if is_any_usual else {}
    return {id_: Expected.of(latest.get(id_), usual.get(id_)) for id_ in {**latest, **usual}}
