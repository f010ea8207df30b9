"""What the example jobs do: stand in for GPU work for some seconds, on any machine."""

import time

import dagster as dg


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
