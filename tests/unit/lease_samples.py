"""Leases as tests need them."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from dagster_gpufair.ledger.leases import LeaseRecord


def lease(id_: int = 1, **more: Any) -> LeaseRecord:
    """A running lease of team red for one T4, which began at 0."""
    values: dict[str, Any] = {
        **dict.fromkeys(field.name for field in fields(LeaseRecord)),
        "id": id_,
        "request_id": f"run-{id_}",
        "run_id": f"run-{id_}",
        "step_key": "",
        "attempt": 1,
        "state": "running",
        "team": "red",
        "tier": "standard",
        "pool": "t4",
        "gpus": 1000,
        "nodes": {},
        "started_at": 0.0,
        "began_at": 0.0,
        "policy_version": 1,
        "ungated": False,
        "stop_tries": 0,
        "preempted": 0,
        "cpus": 0.0,
        "memory_gib": 0.0,
    }
    return LeaseRecord(**{**values, **more})
