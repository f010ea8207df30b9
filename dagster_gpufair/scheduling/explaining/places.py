"""Where each waiting request stands in the line of its pool."""

from __future__ import annotations

from dagster_gpufair.scheduling.model import Plan
from dagster_gpufair.scheduling.order import Key, comparison_key


def places(plan: Plan) -> dict[str, tuple[str, int]]:
    """The pool and the place, from 1, of each waiting request by its id.

    Requests that are alike may have others between them, so each is compared by its own points.
    """
    lines: dict[str, list[Key]] = {}
    for group in plan.waiting:
        lines.setdefault(group.pool, []).extend(
            comparison_key(
                group.class_,
                group.saturation,
                group.inside,
                group.points_of(request).score,
                request.submitted,
                request.id,
            )
            for request in group.requests
        )
    return {
        key[-1]: (pool, place)
        for pool, line in lines.items()
        for place, key in enumerate(sorted(line), start=1)
    }
