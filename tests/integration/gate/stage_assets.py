"""Assets of a code location, some of which need GPUs."""

import dagster as dg

on_t4 = {"gpufair/team": "red", "gpufair/pool": "t4"}


@dg.asset(tags={**on_t4, "gpufair/gpus": "1"})
def features() -> None:
    """One GPU."""


@dg.asset(tags={**on_t4, "gpufair/gpus": "2"})
def model() -> None:
    """Two of the same pool."""


@dg.asset(tags={"gpufair/team": "red", "gpufair/pool": "a100", "gpufair/gpus": "8"})
def large_model() -> None:
    """Eight of another."""


@dg.asset(tags={"gpufair/pool": "t4", "gpufair/gpus": "1"})
def anybodys() -> None:
    """Leaves it to the run whose it is."""


@dg.asset(tags={"gpufair/pool": "t4", "gpufair/gpu": "1"})
def misspelt() -> None:
    """Means to need a GPU."""


@dg.asset(tags={"owner": "red"})
def table() -> None:
    """None."""


defs = dg.Definitions(
    assets=[features, model, large_model, anybodys, misspelt, table],
    jobs=[dg.define_asset_job("retrain", selection=[features, model])],
)
