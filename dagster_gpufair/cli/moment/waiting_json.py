"""A request in line, for programs."""

from __future__ import annotations

from typing import Any

from dagster_gpufair.cli.moment.current import Moment, Waiter
from dagster_gpufair.cli.moment.launched_by import launched_by
from dagster_gpufair.cli.output.json_output import gpus, iso
from dagster_gpufair.ledger.requests import RequestRecord
from dagster_gpufair.scheduling.model import Points


def waiter_json(moment: Moment, waiter: Waiter, record: RequestRecord) -> dict[str, Any]:
    """A request in line, for programs."""
    request = waiter.request
    expected = moment.expected(request.id)
    return {
        "run": record.run_id,
        "job": record.job_name,
        "launched_by": launched_by(record).as_json(),
        "team": request.team,
        "project": request.project,
        "tier": request.tier,
        "pool": waiter.pool,
        "place": waiter.place,
        "gpus": gpus(request.gpus),
        "min_gpus": gpus(request.min_gpus),
        "submitted": iso(request.submitted),
        "waited_seconds": round(max(0.0, moment.now - request.submitted), 3),
        "class": waiter.class_.label,
        "saturation": round(waiter.saturation, 6),
        "points": points_json(waiter.points),
        "reason": waiter.reason,
        "message": waiter.message,
        "blockers": list(waiter.blockers),
        "about": iso(expected.about),
        "at_the_latest": iso(expected.latest),
    }


def points_json(points: Points) -> dict[str, float]:
    """Each by its name, and their sum."""
    return {
        **{name: round(value, 3) for name, value in points._asdict().items()},
        "sum": round(points.score, 3),
    }
