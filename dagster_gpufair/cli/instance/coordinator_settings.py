"""Which policy file an instance follows by ``dagster.yaml`` alone, for the common ways to say it.

Whatever is not recognised here is left to Dagster, which also says what is wrong with it:
``test_cli_coordinator_settings.py`` compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from dagster_gpufair.engine.policy_file import DEFAULT_POLICY_FILE, find_policy_file

_MODULES = ("dagster_gpufair", "dagster_gpufair.gate.submission.coordinator")
_CLASS = "GpuFairRunCoordinator"
_NUMBERS = frozenset(
    (
        "max_concurrent_runs", "dequeue_interval_seconds", "dequeue_num_workers",
        "max_user_code_failure_retries", "user_code_failure_retry_delay",
    )
)  # fmt: skip
_NO_LIMIT = {"max_concurrent_runs": -1}


def followed_policy_file(folder: Path, config: Path) -> Path | None:
    """The policy file of the instance in ``folder`` by the settings in ``config``; None if not sure.

    It is sure where Dagster would load all of ``dagster.yaml``, but for ``storage`` (see
    `storage_settings`), and our run coordinator with it.
    """
    try:
        settings = yaml.safe_load((config / "dagster.yaml").read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return None
    if not isinstance(settings, dict) or not settings.keys() <= {
        "run_coordinator", "storage", "telemetry"
    }:  # fmt: skip
        return None
    if settings.get("telemetry", {"enabled": True}) not in ({"enabled": True}, {"enabled": False}):
        return None
    named = settings.get("run_coordinator")
    if not isinstance(named, dict) or not {"module", "class"} <= named.keys() <= {
        "module", "class", "config"
    }:  # fmt: skip
        return None
    options = named.get("config", {})
    if named["module"] not in _MODULES or named["class"] != _CLASS or not _is_sound(options):
        return None
    return find_policy_file(options.get("policy", DEFAULT_POLICY_FILE), str(folder))


def _is_sound(options: Any) -> bool:
    return isinstance(options, Mapping) and all(
        _takes(name, value) for name, value in options.items()
    )


def _takes(name: str, value: Any) -> bool:
    """Whether an option surely takes this value."""
    if name == "policy":
        return isinstance(value, str)
    if name == "dequeue_use_threads":
        return isinstance(value, bool)
    if name in _NUMBERS and type(value) is int:
        return value >= _NO_LIMIT.get(name, 0)
    return False
