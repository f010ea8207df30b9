"""A code location with work that can be stopped in the middle."""

import dagster as dg

days = dg.StaticPartitionsDefinition(["1", "2", "3"])
BORROWS = {"gpufair/team": "blue", "gpufair/pool": "t4", "gpufair/gpus": "1"}


@dg.op
def prepare() -> int:
    """Done before the training."""
    return 1


@dg.op
def fit(prepared: int) -> None:
    """The training."""


@dg.graph
def train() -> None:
    fit(prepare())


@dg.asset(partitions_def=days, tags=BORROWS)
def model() -> None:
    """A model for each day."""


@dg.asset(partitions_def=days, deps=[model])
def report() -> None:
    """Made from the model."""


defs = dg.Definitions(
    assets=[model, report],
    jobs=[
        train.to_job("train"),
        train.to_job("daily", tags=BORROWS, partitions_def=days),
    ],
)
