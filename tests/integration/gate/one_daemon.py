"""A daemon as a process of its own, for a stage that is there: it makes passes, and may be killed at a write.

Arguments: the stage's folder, the port of its code server, the time of day of its first pass, how many it
makes, and at which of its writes it is killed.
"""

from __future__ import annotations

import os
import sys
import time

from dagster import DagsterInstance
from dagster._core.test_utils import create_test_daemon_workspace_context
from gate_scene import at_moment
from gate_stage import Stage, code_at, moved_turn_clock, turns_at

from dagster_gpufair.ledger import writer

KILLED = 9


def main(home: str, code: int, at: float, passes: int, moment: int) -> None:
    writer.turn_clock = moved_turn_clock(writer.turn_clock)
    with (
        DagsterInstance.from_config(home) as instance,
        create_test_daemon_workspace_context(code_at(code), instance) as context,
        at_moment(moment, lambda: os._exit(KILLED)),
    ):
        daemon = Stage.new_daemon()
        for number in range(passes):
            with turns_at(at + number):
                assert list(filter(None, daemon.run_iteration(context, at + number))) == []
            gate = daemon._gate
            assert gate is not None
            gate.teller.finish(timeout=60)
            # Stops, and what goes on after them, are beside the passes.
            until = time.monotonic() + 0.5
            while gate.engine.book.to_go_on() and time.monotonic() < until:
                time.sleep(0.02)


if __name__ == "__main__":
    home, code, at, passes, moment = sys.argv[1:]
    main(home, int(code), float(at), int(passes), int(moment))
