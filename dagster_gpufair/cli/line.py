"""A request in the line of its pool, in the words that people and programs read."""

from __future__ import annotations

from typing import Any

from dagster_gpufair.cli.export import gpus, iso
from dagster_gpufair.cli.moment import Moment, Waiter
from dagster_gpufair.cli.tables import clock, plain
from dagster_gpufair.ledger.leases import LeaseRecord
from dagster_gpufair.ledger.requests import RequestRecord
from dagster_gpufair.policy.quantities import format_gpus
from dagster_gpufair.scheduling.model import Account, Points, Request


def asked(request: Request) -> str:
    """``8``, ``4-8`` for at least four, ``16 (8 a node)``."""
    least = f"{format_gpus(request.sizes[-1])}-" if len(request.sizes) > 1 else ""
    node = f" ({format_gpus(request.gpus_per_node)} a node)" if request.gpus_per_node else ""
    return f"{least}{format_gpus(request.gpus)}{node}"


def account(request: Request | RequestRecord | LeaseRecord) -> str:
    """``nlp``, ``nlp/pretrain``."""
    return plain(str(Account(request.team, request.project)))


def about(moment: Moment, request_id: str) -> str:
    """About when a request starts: ``14:20``, ``now``, or ``?`` where nothing bounds it."""
    at = moment.starts_at.get(request_id)
    if at is None:
        return "?"
    return "now" if at <= moment.now else clock(at, moment.now)


def waiter_json(moment: Moment, waiter: Waiter, record: RequestRecord) -> dict[str, Any]:
    """A request in line, for programs."""
    request = waiter.request
    return {
        "run": record.run_id,
        "job": record.job_name,
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
        "about": iso(moment.starts_at.get(request.id)),
    }


def points_json(points: Points) -> dict[str, float]:
    """Each by its name, and their sum."""
    return {
        **{name: round(value, 3) for name, value in points._asdict().items()},
        "sum": round(points.score, 3),
    }
