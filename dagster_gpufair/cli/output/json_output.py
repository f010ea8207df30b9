"""The same facts for programs: JSON with stable keys, GPUs and points as numbers, times in UTC."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

import click

from dagster_gpufair.policy.quantities import gpus_number

SCHEMA = 1
"""The form of all JSON. It is raised when a key is removed or means something else, not when one is
added; docs/json.md has it."""

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead.")


def iso(at: float | None) -> str | None:
    """``2026-06-01T12:00:00.250Z``."""
    if at is None:
        return None
    moment = datetime.fromtimestamp(at, timezone.utc).isoformat(timespec="milliseconds")
    return moment.replace("+00:00", "Z")


def gpus(thousandths: int | None) -> int | float | None:
    """A number of GPUs."""
    return None if thousandths is None else gpus_number(thousandths)


def show_json(data: Mapping[str, Any]) -> None:
    """Print it. All but ASCII is escaped: what a program reads, a terminal must not act on."""
    click.echo(json.dumps({"schema": SCHEMA, **data}, indent=2, allow_nan=False))
