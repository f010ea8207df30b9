"""Whom a policy would stop now, if it were in force."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dagster_gpufair.cli.moment.request_words import of_json, who
from dagster_gpufair.cli.output.text import counted
from dagster_gpufair.scheduling.model import Preemption

_SHOWN = 8


def all_that_would_stop(
    stops: Sequence[Preemption], names: Mapping[str, str]
) -> Iterator[tuple[int, str]]:
    """Lines with their depth: for whom, and under it who would be stopped by which rule."""
    count = sum(len(stop.victims) for stop in stops)
    if not count:
        yield 0, "By this policy, no run would be stopped now."
        return
    yield 0, f"By this policy, {counted(count, 'run')} would be stopped now:"
    for stop in stops[:_SHOWN]:
        asks = ", after approval" if stop.awaits_approval else ""
        yield 1, f"for {names[stop.request.id]} ({who(stop.request)}){asks}"
        for victim in stop.victims[:_SHOWN]:
            yield 2, f"{names[victim.lease.id]} ({who(victim.lease)}): {victim.rule}"
        if len(stop.victims) > _SHOWN:
            yield 2, f"and {len(stop.victims) - _SHOWN} more"
    if len(stops) > _SHOWN:
        yield 1, f"and for {len(stops) - _SHOWN} more that wait; --json has all"


def stop_json(stop: Preemption) -> dict[str, Any]:
    """One request and all that would be stopped for it, for programs."""
    return {
        "for": of_json(stop.request),
        "stops": [{**of_json(victim.lease), "rule": victim.rule} for victim in stop.victims],
        "approval": stop.awaits_approval,
    }
