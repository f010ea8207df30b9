"""The platform team: an emergency, and a health check without GPUs."""

import dagster as dg

from dagster_gpufair import gpu_tags
from definitions.work import work


@dg.job(
    executor_def=dg.in_process_executor,
    tags=gpu_tags(4, pool="h100", tier="critical", kind="online_inference", max_duration="30m"),
)
def restore_service() -> None:
    """Critical: comes before everything else that waits."""
    work()


@dg.job(executor_def=dg.in_process_executor)
def health_check() -> None:
    """No GPU."""
    work()


defs = dg.Definitions(jobs=[restore_service, health_check])
