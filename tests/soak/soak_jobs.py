"""The code location of the soak: jobs that take some seconds, and some that take too long."""

import time

import dagster as dg


@dg.op(config_schema={"seconds": float})
def work(context: dg.OpExecutionContext) -> None:
    """Use GPUs for so many seconds."""
    time.sleep(context.op_config["seconds"])


train = dg.GraphDefinition(name="train", node_defs=[work]).to_job(
    executor_def=dg.in_process_executor
)
defs = dg.Definitions(jobs=[train])
