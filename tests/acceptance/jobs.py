"""The code location of the acceptance tests: jobs that run until they are told to end."""

import os
import time
from pathlib import Path

import dagster as dg

from dagster_gpufair import gpu_tags
from dagster_gpufair.preemption import checkpoint_dir, checkpointed, should_stop, stop_here


def wait_to_leave(run_id: str) -> None:
    """Run until the test leaves a file for this run, or for all."""
    folder = Path(os.environ["DAGSTER_HOME"]) / "leave"
    started = time.monotonic()
    while not ((folder / run_id).exists() or (folder / "all").exists()):
        if time.monotonic() - started > 300:
            raise TimeoutError("the test has forgotten this run")
        time.sleep(0.1)


@dg.op
def wait_for_leave(context: dg.OpExecutionContext) -> None:
    """All that such a job does."""
    wait_to_leave(context.run_id)


@dg.op
def prepare() -> str:
    """What is done before the training."""
    return "prepared"


@dg.op
def train(context: dg.OpExecutionContext, prepared: str) -> None:
    """Run until the test leaves a file for this run, or for all."""
    wait_to_leave(context.run_id)


@dg.op
def learn(context: dg.OpExecutionContext) -> None:
    """Goes on from where it was stopped, which it does at once when it is told."""
    saved = checkpoint_dir() / "steps"
    steps = int(saved.read_text()) if saved.exists() else 0
    context.log.info(f"goes on from step {steps}")
    leave = Path(os.environ["DAGSTER_HOME"]) / "leave"
    while not (leave / "all").exists():
        steps += 1
        saved.write_text(str(steps))
        checkpointed()
        if should_stop():
            stop_here()
        time.sleep(0.1)


@dg.graph
def learning() -> None:
    learn()


@dg.op
def save_and_go_on(context: dg.OpExecutionContext) -> None:
    """Saves ten times a second, and heeds no notice."""
    leave = Path(os.environ["DAGSTER_HOME"]) / "leave"
    while not ((leave / context.run_id).exists() or (leave / "all").exists()):
        checkpointed()
        time.sleep(0.1)


@dg.graph
def prepare_and_train() -> None:
    train(prepare())


def _job(name: str, tags: dict[str, str], op: dg.OpDefinition = wait_for_leave) -> dg.JobDefinition:
    graph = dg.GraphDefinition(name=name, node_defs=[op])
    return graph.to_job(executor_def=dg.in_process_executor, tags=tags)


defs = dg.Definitions(
    jobs=[
        _job("large", gpu_tags(2, team="red")),
        _job("small", gpu_tags(1, team="red")),
        _job("borrows", gpu_tags(1, team="blue")),
        _job("plain", {}),
        _job("saves", gpu_tags(2, team="blue"), save_and_go_on),
        learning.to_job(
            "learns", executor_def=dg.multiprocess_executor, tags=gpu_tags(2, team="blue")
        ),
        prepare_and_train.to_job(
            "trains", executor_def=dg.multiprocess_executor, tags=gpu_tags(2, team="blue")
        ),
    ]
)
