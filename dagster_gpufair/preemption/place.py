"""Where this code finds the channel of its run, and its checkpoints.

First by the environment, which reaches subprocesses and other containers; then by the step of Dagster that
this thread is in. The threads that a step starts do not know of it: there, by the step that was found last.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from pathlib import Path

from dagster_gpufair.preemption import files
from dagster_gpufair.preemption.dagster_step import DagsterStep, current_step

CHANNEL_VARIABLE = "GPUFAIR_CHANNEL"
"""Names the folder of this run's channel."""
STEP_VARIABLE = "GPUFAIR_STEP"
"""The key of the step that this process belongs to."""
CHECKPOINT_VARIABLE = "GPUFAIR_CHECKPOINT_DIR"
"""Names the folder that `checkpoint_dir` returns."""
CHANNELS_VARIABLE = "GPUFAIR_CHANNELS"
"""Names the folder in which the channels of all runs are, where it is not in ``DAGSTER_HOME``."""
_LOCAL = "gpufair-checkpoints"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a step's code finds its channel and its checkpoints.

    ``channel`` may name a folder that is not there. ``checkpoints`` is where they lie unless the lease says
    otherwise, which counts for nothing where ``is_given``.
    """

    channel: Path | None
    step: str | None
    checkpoints: Path
    is_given: bool = False

    def checkpoint_folder(self) -> Path:
        """The folder for this step's checkpoints, which may not be there yet."""
        if self.is_given or self.channel is None:
            return self.checkpoints
        lease = files.read(self.channel / files.LEASE) or {}
        said = lease.get("checkpoint_dir")
        if not isinstance(said, str) or not said:
            return self.checkpoints
        return _of_step(Path(said), self.step)


_last_found: DagsterStep | None = None


def find_place() -> Place:
    """Where this code's channel and checkpoints are."""
    global _last_found
    step = current_step()
    if step is not None:
        _last_found = step
    elif threading.current_thread() is not threading.main_thread():
        step = _last_found
    return _by_environment(step) or _by_step(step) or _without_channel()


def channel_env() -> dict[str, str]:
    """The environment by which a subprocess, or a Dagster Pipes session, finds the channel of this run.

    Without a channel it names the checkpoint folder only. Paths are those of this machine: another machine or
    container needs the same folders mounted at the same paths.
    """
    place = find_place()
    env = {CHECKPOINT_VARIABLE: str(place.checkpoint_folder())}
    if place.channel is not None and place.channel.is_dir():
        env[CHANNEL_VARIABLE] = str(place.channel)
        if place.step is not None:
            env[STEP_VARIABLE] = place.step
    return env


def _by_environment(found: DagsterStep | None) -> Place | None:
    named = os.environ.get(CHANNEL_VARIABLE)
    if not named:
        return None
    channel = Path(named).absolute()
    key = os.environ.get(STEP_VARIABLE) or (found.key if found else None)
    given = os.environ.get(CHECKPOINT_VARIABLE)
    if given:
        return Place(channel, key, Path(given).absolute(), is_given=True)
    request = found.request if found else channel.name
    return Place(channel, key, _checkpoints(channel.parent, request, key))


def _by_step(step: DagsterStep | None) -> Place | None:
    channels = _channels(step)
    if step is None or channels is None:
        return None
    checkpoints = _checkpoints(channels, step.request, step.key)
    return Place(
        channels / files.folder_name(step.run_id),
        step.key,
        _given() or checkpoints,
        _given() is not None,
    )


def _without_channel() -> Place:
    return Place(None, None, _given() or Path.cwd() / _LOCAL, is_given=True)


def _given() -> Path | None:
    given = os.environ.get(CHECKPOINT_VARIABLE)
    return Path(given).absolute() if given else None


def _channels(step: DagsterStep | None) -> Path | None:
    named = os.environ.get(CHANNELS_VARIABLE)
    if named:
        return Path(named).absolute()
    home = step.home if step else None
    return home / "gpufair" / "channels" if home else None


def _checkpoints(channels: Path, request: str, step: str | None) -> Path:
    """As the daemon has it: beside the folder of the channels, one for each request."""
    return _of_step(channels.parent / "checkpoints" / files.folder_name(request), step)


def _of_step(folder: Path, step: str | None) -> Path:
    return folder if step is None else folder / files.folder_name(step)
