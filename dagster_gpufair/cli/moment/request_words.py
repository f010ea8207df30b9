"""A request in the line of its pool, in the words that people and programs read."""

from __future__ import annotations

from typing import Any

from dagster_gpufair.cli.moment.current import Moment, Waiter
from dagster_gpufair.cli.output.json_output import gpus, iso
from dagster_gpufair.cli.output.tables import plain
from dagster_gpufair.ledger.leases import LeaseRecord
from dagster_gpufair.ledger.requests import RequestRecord
from dagster_gpufair.policy.quantities import format_gpus
from dagster_gpufair.scheduling.model import Account, Lease, Points, Request


def asked(request: Request) -> str:
    """``8``, ``4-8`` for at least four, ``16 (8 a node)``."""
    least = f"{format_gpus(request.sizes[-1])}-" if len(request.sizes) > 1 else ""
    node = f" ({format_gpus(request.gpus_per_node)} a node)" if request.gpus_per_node else ""
    return f"{least}{format_gpus(request.gpus)}{node}"


def account(request: Request | RequestRecord | Lease | LeaseRecord) -> str:
    """``nlp``, ``nlp/pretrain``."""
    return plain(str(Account(request.team, request.project)))


def who(of: Request | Lease) -> str:
    """``nlp/pretrain, milestone, 8 GPUs``."""
    count = asked(of) if isinstance(of, Request) else format_gpus(of.gpus)
    return f"{account(of)}, {plain(of.tier)}, {count} GPU{'' if count == '1' else 's'}"


def of_json(of: Request | Lease) -> dict[str, Any]:
    """Whose it is and how large, for programs."""
    return {
        "run": of.id,
        "team": of.team,
        "project": of.project,
        "tier": of.tier,
        "gpus": gpus(of.gpus),
    }


def waiter_json(moment: Moment, waiter: Waiter, record: RequestRecord) -> dict[str, Any]:
    """A request in line, for programs."""
    request = waiter.request
    expected = moment.expected(request.id)
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
