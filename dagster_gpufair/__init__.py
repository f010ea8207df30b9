"""GPU quotas, fair order and plain reasons for the teams that share one Dagster instance."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dagster_gpufair.gate.submission.coordinator import GpuFairRunCoordinator
    from dagster_gpufair.gate.submission.tags import InvalidAsk, gpu_tags

__version__ = "0.5.0"
__all__ = ["GpuFairRunCoordinator", "InvalidAsk", "gpu_tags"]

_DEFINED_IN = {
    "GpuFairRunCoordinator": "dagster_gpufair.gate.submission.coordinator",
    "InvalidAsk": "dagster_gpufair.gate.submission.tags",
    "gpu_tags": "dagster_gpufair.gate.submission.tags",
}


def __getattr__(name: str) -> Any:
    # Code locations need the tags only, the instance the coordinator, and `gpufair --version` neither.
    if name in _DEFINED_IN:
        from importlib import import_module

        return getattr(import_module(_DEFINED_IN[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
