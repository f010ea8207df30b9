"""A request in the line of its pool, in the words that people and programs read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dagster_gpufair.cli.output.json_output import gpus
from dagster_gpufair.cli.output.text import plain
from dagster_gpufair.policy.quantities import format_gpus
from dagster_gpufair.scheduling.model import Account, Lease, Request

if TYPE_CHECKING:
    from dagster_gpufair.ledger.leases import LeaseRecord
    from dagster_gpufair.ledger.requests import RequestRecord


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


def title(record: RequestRecord) -> str:
    """``3f2a91c0-… · nlp/pretrain milestone · train``."""
    whose = f"{account(record)} {plain(record.tier)}".strip()
    parts = (plain(record.run_id, 250), whose, plain(record.job_name))
    return " · ".join(part for part in parts if part)


def of_json(of: Request | Lease, runs: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Whose it is and how large, for programs; ``runs`` has the run of each that is in another now."""
    return {
        "run": (runs or {}).get(of.id, of.id),
        "team": of.team,
        "project": of.project,
        "tier": of.tier,
        "gpus": gpus(of.gpus),
    }
