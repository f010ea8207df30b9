"""The code location of the acceptance tests: jobs that run until they are told to end."""

import os
import time
from pathlib import Path

import dagster as dg

from dagster_gpufair import gpu_tags


@dg.op
def wait_for_leave(context: dg.OpExecutionContext) -> None:
    """Run until the test leaves a file for this run, or for all."""
    folder = Path(os.environ["DAGSTER_HOME"]) / "leave"
    started = time.monotonic()
    while not ((folder / context.run_id).exists() or (folder / "all").exists()):
        if time.monotonic() - started > 300:
            raise TimeoutError("the test has forgotten this run")
        time.sleep(0.1)


def _job(name: str, tags: dict[str, str]) -> dg.JobDefinition:
    graph = dg.GraphDefinition(name=name, node_defs=[wait_for_leave])
    return graph.to_job(executor_def=dg.in_process_executor, tags=tags)


defs = dg.Definitions(
    jobs=[
        _job("large", gpu_tags(2, team="red")),
        _job("small", gpu_tags(1, team="red")),
        _job("borrows", gpu_tags(1, team="blue")),
        _job("plain", {}),
    ]
)
