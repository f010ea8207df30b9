"""The code location of the soak: jobs that take some seconds, some that take too long, and bad losers."""

import subprocess
import time

import dagster as dg

from dagster_gpufair.preemption import checkpointed, should_stop, stop_here


@dg.op(config_schema={"seconds": float, "manner": str})
def work(context: dg.OpExecutionContext) -> None:
    """Use GPUs for so many seconds, in a manner.

    ``saves``: heeds its notice. ``stubborn``: takes seconds to end when it is told to. ``forks``: has a child
    that ends seconds after it. ``plain``: none of these.
    """
    end = time.monotonic() + context.op_config["seconds"]
    manner = context.op_config["manner"]
    if manner == "forks":
        subprocess.Popen(["sleep", str(context.op_config["seconds"] + 3)])
    try:
        while time.monotonic() < end:
            time.sleep(0.2)
            if manner == "saves":
                checkpointed()
                if should_stop():
                    stop_here()
    except BaseException:
        if manner == "stubborn":
            time.sleep(4)
        raise


@dg.op
def prepare() -> None:
    """What is done before."""


@dg.graph
def train_in_steps() -> None:
    prepare()
    work()


train = dg.GraphDefinition(name="train", node_defs=[work]).to_job(
    executor_def=dg.in_process_executor
)
in_steps = train_in_steps.to_job(
    "in_steps", executor_def=dg.multiprocess_executor.configured({"max_concurrent": 2})
)
defs = dg.Definitions(jobs=[train, in_steps])
