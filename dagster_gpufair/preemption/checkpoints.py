"""Where a step's checkpoints lie: in the same folder, however often its work is stopped and goes on."""

from __future__ import annotations

from pathlib import Path

from dagster_gpufair.preemption.place import find_place


def checkpoint_dir() -> Path:
    """The folder for this step's checkpoints; it is there when this returns.

    It is the same for every run that goes on with the same work, and each step of a run has its own. Where a
    run is not under the gate it is a folder of this run in ``DAGSTER_HOME``, and outside of Dagster
    ``gpufair-checkpoints`` in the current folder, so that code goes on from its checkpoint there too. Nothing
    in it is ever deleted for you.

    Raises:
        OSError: if the folder is not there and cannot be made.
    """
    folder = find_place().checkpoint_folder()
    folder.mkdir(parents=True, exist_ok=True)
    return folder
