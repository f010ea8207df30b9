"""The changes of its tags with which a run that waits would start now."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import RenderableType

from dagster_gpufair.cli.moment.current import Moment
from dagster_gpufair.cli.output.json_output import gpus, iso
from dagster_gpufair.cli.output.tables import Column, table
from dagster_gpufair.cli.output.text import plain, sentence
from dagster_gpufair.gate.submission.tags import (
    CPUS,
    GPUS,
    GPUS_PER_NODE,
    MAX_DURATION,
    MEMORY_GIB,
    POOL,
    TIER,
)
from dagster_gpufair.policy.quantities import format_duration, format_gpus
from dagster_gpufair.scheduling.explaining.remedies import Remedy, what_would_help
from dagster_gpufair.scheduling.model import Request

MOST_WAITING = 20_000
"""In a longer queue nothing is tried: each try decides on all that wait."""

WAIT = "wait"
"""The change that is none: the request fits as it is, later."""

LEFT_OUT = "left out"
"""What is said of a tag that the run would start without."""

_TAGS = {
    "cpus": CPUS,
    "memory_gib": MEMORY_GIB,
    "gpus": GPUS,
    "pool": POOL,
    "tier": TIER,
    "gpus_per_node": GPUS_PER_NODE,
    "max_duration": MAX_DURATION,
}


def remedies_of(moment: Moment, request: Request) -> Sequence[Remedy] | None:
    """What would start it now; None where that was not tried.

    What something outside the decision blocks starts with no change of its tags.
    """
    if request.id in moment.state.blocked:
        return ()
    if len(moment.state.requests) > MOST_WAITING:
        return None
    return what_would_help(moment.policy, moment.state, request, moment.now)


def would_start_with(
    request: Request, remedies: Sequence[Remedy] | None
) -> Iterator[RenderableType]:
    """In parts to print."""
    if remedies is None:
        yield f"Which tags would start it now was not tried: more than {MOST_WAITING:,} runs wait."
        return
    changes = [remedy for remedy in remedies if remedy.change != WAIT]
    if not changes:
        yield "No single change of its tags would start it now."
        return
    rows = [
        (
            f"  {_TAGS[remedy.change]}: {sentence(_value(request, remedy) or LEFT_OUT)}",
            f"on {format_gpus(remedy.gpus)} {plain(remedy.pool)}",
        )
        for remedy in changes
    ]
    yield table((Column("It would start now with"), Column()), rows)


def fits_at(remedies: Sequence[Remedy] | None) -> float | None:
    """When it fits as it is if running jobs use their full max_duration, and no other run arrives."""
    waits = (remedy for remedy in remedies or () if remedy.change == WAIT)
    return next((float(remedy.value) for remedy in waits), None)


def remedy_json(request: Request, remedy: Remedy) -> dict[str, Any]:
    """One of them, for programs."""
    is_wait = remedy.change == WAIT
    return {
        "change": remedy.change,
        "tag": None if is_wait else _TAGS[remedy.change],
        "value": iso(float(remedy.value)) if is_wait else _value(request, remedy),
        "pool": remedy.pool,
        "gpus": gpus(remedy.gpus),
        "stops": list(remedy.stops),
    }


def _value(request: Request, remedy: Remedy) -> str | None:
    """As the tag has it; None if it would start without the tag."""
    if remedy.change in ("cpus", "memory_gib"):
        return f"{float(remedy.value):.12g}" if remedy.value else None
    if remedy.change in ("gpus", "gpus_per_node"):
        return format_gpus(int(remedy.value))
    if remedy.change == "pool":
        return ",".join([*request.pools, str(remedy.value)])
    if remedy.change == "max_duration":
        return format_duration(float(remedy.value))
    return str(remedy.value)
