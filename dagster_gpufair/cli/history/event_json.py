"""An event for programs: GPUs as numbers, and times with their zone, also in what it holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dagster_gpufair.cli.history.event_sentences import Names, sentence_of
from dagster_gpufair.cli.output.json_output import gpus, iso
from dagster_gpufair.ledger.events import Event

_GPUS = frozenset(("gpus", "min_gpus", "gpus_per_node"))
_TIMES = frozenset(
    ("at", "began", "ends", "over", "saved", "since", "started", "submitted", "until")
)
_EPOCH = 1e8
"""Seconds: what is less is no time of day, but how long something took."""


def event_json(event: Event, names: Names | None = None) -> dict[str, Any]:
    """All of it, and the sentence that people read."""
    return {
        "at": iso(event.at),
        "kind": event.kind,
        "run": event.run_id,
        "pool": event.pool,
        "sentence": sentence_of(event, names),
        "data": _data(event.data),
    }


def _data(data: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _value(key, value) for key, value in data.items()}


def _value(key: str, value: Any) -> Any:
    if isinstance(value, dict):
        if key == "nodes":
            return {node: _value("gpus", part) for node, part in value.items()}
        return _data(value)
    if isinstance(value, list):
        return [_value(key, each) for each in value]
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return value
    if key in _GPUS:
        return gpus(int(value))
    if value >= _EPOCH and (key in _TIMES or key.endswith(("_at", "_until", "_from"))):
        return iso(value)
    return value
