"""What training code imports to be stopped without losing work: notice, checkpoints, the stop itself.

It needs nothing but the standard library. Where a run is not under the gate (a laptop, a unit test),
``should_stop()`` is False, ``time_left()`` is None, ``checkpoint_dir()`` is a local folder, and the others do
nothing.
"""

from __future__ import annotations

from dagster_gpufair.preemption.checkpoints import checkpoint_dir
from dagster_gpufair.preemption.notices import should_stop, time_left
from dagster_gpufair.preemption.place import channel_env
from dagster_gpufair.preemption.reports import busy, checkpointed, stop_here

__all__ = [
    "busy",
    "channel_env",
    "checkpoint_dir",
    "checkpointed",
    "should_stop",
    "stop_here",
    "time_left",
]
