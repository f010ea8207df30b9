"""What the example jobs do: stand in for GPU work for some seconds, on any machine."""

import time

import dagster as dg

from dagster_gpufair.preemption import checkpoint_dir, checkpointed, stop_here

EPOCHS = 24


class Work(dg.Config):
    """How long a stand-in for GPU work takes."""

    seconds: float = 8.0

    def do(self, log: dg.DagsterLogManager) -> None:
        """Take the time and say so."""
        log.info(f"working for {self.seconds:.0f} seconds")
        time.sleep(self.seconds)


@dg.op
def work(context: dg.OpExecutionContext, config: Work) -> None:
    """A step that takes some time."""
    config.do(context.log)


@dg.op
def epochs(context: dg.OpExecutionContext, config: Work) -> None:
    """Training that saves after each epoch, heeds its notice, and goes on where it was stopped."""
    saved = checkpoint_dir() / "epoch"
    done = int(saved.read_text()) if saved.exists() else 0
    context.log.info(f"begins after epoch {done} of {EPOCHS}")
    for epoch in range(done + 1, EPOCHS + 1):
        time.sleep(config.seconds / EPOCHS)
        saved.write_text(str(epoch))
        context.log.info(f"epoch {epoch} of {EPOCHS} is saved")
        checkpointed(saved)
        stop_here()
