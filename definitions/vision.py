"""The vision team: a backfill of many small evaluations, and training that may shrink."""

import dagster as dg

from dagster_gpufair import gpu_tags
from definitions.work import Work, epochs, work

shards = dg.StaticPartitionsDefinition([f"shard-{number:02d}" for number in range(40)])
one_small_gpu = gpu_tags(1, pool="t4", tier="exploratory", max_duration="10m")


@dg.asset(partitions_def=shards)
def evaluation(context: dg.AssetExecutionContext, config: Work) -> None:
    """One shard of a test set; forty of them make a backfill."""
    config.do(context.log)


evaluate_all = dg.define_asset_job(
    "evaluate_all",
    selection=[evaluation],
    tags=one_small_gpu,
    executor_def=dg.in_process_executor,
)


@dg.job(executor_def=dg.in_process_executor, tags=gpu_tags("2-4", pool="h100", max_duration="30m"))
def train() -> None:
    """Four GPUs, or at least two."""
    work()


@dg.job(
    executor_def=dg.in_process_executor,
    tags=gpu_tags(12, pool="h100", tier="exploratory", max_duration="2h"),
)
def train_for_long() -> None:
    """Twelve GPUs, most of them borrowed: stopped when their team wants them, and continued later."""
    epochs()


@dg.job(executor_def=dg.in_process_executor, tags=gpu_tags(1, pool="t4", max_duration="10m"))
def smoke_test() -> None:
    """One small run, beside the team's own backfill."""
    work()


defs = dg.Definitions(assets=[evaluation], jobs=[evaluate_all, train, train_for_long, smoke_test])
