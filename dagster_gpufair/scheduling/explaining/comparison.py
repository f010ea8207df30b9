"""Why one request comes before another in a pool, point by point."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from dagster_gpufair.policy.models import Policy
from dagster_gpufair.scheduling.model import Request, State
from dagster_gpufair.scheduling.order import PREEMPTIONS_COUNTED, Standing
from dagster_gpufair.scheduling.snapshot import Snapshot
from dagster_gpufair.scheduling.waiting import words

COMPARED = ("class", "saturation", "inside", "sum", "submitted", "id")
"""The names of what `Standing.key` compares, in order."""


class Row(NamedTuple):
    """One thing they are compared by, as it is for each of them, with the rule behind it."""

    name: str
    first: float | str
    second: float | str
    note: str = ""


class Comparison(NamedTuple):
    """Two requests side by side. ``decided_by`` names the row that settles who comes first."""

    first: Standing
    second: Standing
    rows: tuple[Row, ...]
    decided_by: str

    @property
    def comes_first(self) -> str:
        """The id of the better of the two."""
        return min(self.first, self.second, key=lambda standing: standing.key).id


def explain(
    policy: Policy, state: State, now: float, pool: str, first: Request, second: Request
) -> Comparison:
    """Compare two requests as they stand in a pool now, by the least that each accepts."""
    snapshot = Snapshot(policy, state, now)
    one, other = (snapshot.accounts.holding(request, pool) for request in (first, second))
    uses = dict.fromkeys(words.used(holding) for holding in (one, other))
    shares = dict.fromkeys(words.recent_borrowing(holding) for holding in (one, other))
    rules = policy.ordering
    return compare(
        snapshot.standing(first, one, first.sizes[-1]),
        snapshot.standing(second, other, second.sizes[-1]),
        notes={
            "class": "; ".join(uses),
            "saturation": "(borrowed GPUs + 1) ÷ effective weight; lower goes first",
            "inside": "the saturation of their accounts inside the team; lower goes first",
            "wait": f"{rules.wait_points_per_hour:g} points an hour",
            "share": "; ".join(shares),
            "preempted": f"{rules.preempted_points:g} points for each time it was stopped, up to "
            f"{PREEMPTIONS_COUNTED} times",
            "deadline": f"up to {rules.deadline_points:g} points as the start_within of its tier nears",
            "priority": f"{rules.priority_points:g} points for each step of dagster/priority",
            "source": f"up to {rules.source_points:g} points less for GPUs that its own source holds",
        },
    )


def compare(
    first: Standing, second: Standing, notes: Mapping[str, str] | None = None
) -> Comparison:
    """Compare two standings, such as one of a start that was recorded and one of now."""
    notes = notes or {}
    pairs: list[tuple[str, float | str, float | str]] = [
        ("class", first.class_.words, second.class_.words),
        ("saturation", first.saturation, second.saturation),
        *([("inside", first.inside, second.inside)] if first.inside or second.inside else []),
        *zip(first.points._fields, first.points, second.points, strict=True),
        ("sum", first.points.score, second.points.score),
        ("submitted", first.submitted, second.submitted),
        ("id", first.id, second.id),
    ]
    differing = (
        name
        for name, one, other in zip(COMPARED, first.key, second.key, strict=True)
        if one != other
    )
    return Comparison(
        first=first,
        second=second,
        rows=tuple(Row(*pair, note=notes.get(pair[0], "")) for pair in pairs),
        decided_by=next(differing, "id"),
    )
