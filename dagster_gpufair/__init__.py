"""GPU quotas, fair order and plain reasons for the teams that share one Dagster instance."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dagster_gpufair.gate.tags import InvalidAsk, gpu_tags

if TYPE_CHECKING:
    from dagster_gpufair.gate.coordinator import GpuFairRunCoordinator

__version__ = "0.2.0"
__all__ = ["GpuFairRunCoordinator", "InvalidAsk", "gpu_tags"]


def __getattr__(name: str) -> Any:
    # Code locations import this package for its tags; only the instance needs the coordinator.
    if name == "GpuFairRunCoordinator":
        from dagster_gpufair.gate.coordinator import GpuFairRunCoordinator

        return GpuFairRunCoordinator
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
