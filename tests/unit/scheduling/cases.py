"""Decision cases: one YAML file states a policy, a moment and what must be decided."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import yaml

from dagster_gpufair.policy.models import Policy
from dagster_gpufair.policy.quantities import gpus_number, parse_duration, parse_gpus
from dagster_gpufair.scheduling.model import Account, Lease, Plan, Request, State
from dagster_gpufair.scheduling.plan import plan

SHARED = Path(__file__).resolve().parents[3].parent / "shared" / "cases"
_ANY_TIME = datetime(2026, 6, 1, 12, tzinfo=timezone.utc)


@dataclass
class Case:
    name: str
    policy: Policy
    state: State
    now: float
    expect: Mapping[str, Any]

    def differences(self) -> list[str]:
        """What of ``expect`` is not met, in words; a key that is absent is not compared."""
        result = plan(self.policy, self.state, self.now)
        use, reasons = _use(self.state, result, self.now), result.reasons()
        found: dict[str, Any] = {"start": [start.request.id for start in result.starts]}
        for key, of in (("wait", reasons), ("use", use)):
            wanted = self.expect.get(key)
            found[key] = {name: of.get(name) for name in wanted} if wanted else of
        return [
            f"{key}: expected {self.expect[key]}, got {got}"
            for key, got in found.items()
            if key in self.expect and self.expect[key] != got
        ]


def read(path: Path) -> Case:
    return parse(yaml.safe_load(path.read_text(encoding="utf-8")))


def parse(data: Mapping[str, Any]) -> Case:
    now = _seconds(data.get("now", _ANY_TIME), 0.0)
    used = {
        (Account(team), pool): float(hours)
        for team, pools in data.get("used", {}).items()
        for pool, hours in pools.items()
    }
    state = State(
        requests=[_request(row, now) for row in data.get("queued", [])],
        leases=[_lease(row, now) for row in data.get("running", [])],
        used=used,
        cordoned={pool: frozenset(nodes) for pool, nodes in data.get("cordoned", {}).items()},
    )
    policy = Policy.model_validate(data["policy"])
    return Case(data["name"], policy, state, now, data.get("expect", {}))


def _request(row: Mapping[str, Any], now: float) -> Request:
    return Request(
        **_only(row, ("id", "team", "tier", "project", "kind", "source", "preempted", "cpus")),
        **_only(row, ("memory_gib",)),
        pools=tuple(row["pools"] if "pools" in row else [row["pool"]]),
        gpus=parse_gpus(row["gpus"]),
        submitted=_seconds(row["submitted"], now),
        min_gpus=_gpus(row.get("min_gpus")),
        gpus_per_node=_gpus(row.get("gpus_per_node")),
        max_duration=_duration(row.get("max_duration")),
    )


def _lease(row: Mapping[str, Any], now: float) -> Lease:
    gpus = row["gpus"]
    nodes = {row["node"]: gpus} if "node" in row else row.get("nodes", {})
    return Lease(
        **_only(row, ("id", "team", "tier", "pool", "project", "source", "preempted")),
        gpus=parse_gpus(gpus),
        started=_seconds(row["started"], now),
        nodes={node: parse_gpus(part) for node, part in nodes.items()},
        max_duration=_duration(row.get("max_duration")),
    )


def _only(row: Mapping[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    return {key: row[key] for key in keys if key in row}


def _gpus(value: Any) -> int | None:
    return None if value is None else parse_gpus(value)


def _duration(value: Any) -> float | None:
    return None if value is None else parse_duration(value).total_seconds()


def _seconds(value: Any, now: float) -> float:
    """A time, or an offset from now: ``-1h``, ``0s``, ``+5m``."""
    if isinstance(value, str) and not value[:4].isdigit():
        sign = -1 if value.startswith("-") else 1
        return now + sign * parse_duration(value.lstrip("+-")).total_seconds()
    moment = (
        datetime.fromisoformat(value.replace("Z", "+00:00")) if isinstance(value, str) else value
    )
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=timezone.utc)
    return float(moment.timestamp())


def _use(state: State, result: Plan, now: float) -> dict[str, dict[str, float]]:
    use: dict[str, dict[str, int]] = {}
    for lease in state.after(result.starts, now).leases:
        pools = use.setdefault(lease.team, {})
        pools[lease.pool] = pools.get(lease.pool, 0) + lease.gpus
    return {
        team: {pool: gpus_number(gpus) for pool, gpus in pools.items()}
        for team, pools in use.items()
    }
