"""The NLP team: one large pretraining, and daily fine-tuning."""

import dagster as dg

from dagster_gpufair import gpu_tags
from definitions.work import work


@dg.job(
    executor_def=dg.in_process_executor,
    tags=gpu_tags(8, pool="h100", tier="milestone", project="pretrain", max_duration="1h"),
)
def pretrain() -> None:
    """A gang: eight GPUs of one node, all or nothing."""
    work()


@dg.job(executor_def=dg.in_process_executor, tags=gpu_tags(2, pool="h100", max_duration="30m"))
def finetune() -> None:
    """Two GPUs, standard tier."""
    work()


@dg.job(executor_def=dg.in_process_executor)
def prepare_corpus() -> None:
    """No GPU: starts as any run of Dagster does."""
    work()


defs = dg.Definitions(jobs=[pretrain, finetune, prepare_corpus])
