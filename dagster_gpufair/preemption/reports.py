"""What user code says of itself: that its work is saved, that it may be stopped, that it is busy."""

from __future__ import annotations

import logging
import math
import os
import signal
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from dagster_gpufair.preemption import files
from dagster_gpufair.preemption.notices import LOOK_EVERY, watch_of
from dagster_gpufair.preemption.place import Place, find_place

_logger = logging.getLogger("dagster_gpufair.preemption")
_TERM_TAKES = 10.0
"""Seconds that a process has to end by SIGTERM."""
_parent = os.getppid()
"""The process that began this one."""
_unwritten: set[str] = set()
"""The files that could not be written last time, so that it is said once."""


def checkpointed(path: str | os.PathLike[str] | None = None) -> None:
    """Say that all work up to now is saved: stopping the run loses only what comes after.

    Call it after each checkpoint, under notice or not. Where several steps of a run work at the same time, it
    counts for the whole run. That it cannot be said is logged, and is no error.

    Args:
        path: where the checkpoint is, for people who read the run's page.
    """
    said: dict[str, Any] = {"at": time.time()}
    if path is not None:
        said["path"] = os.fspath(path)
    _say(find_place(), files.CHECKPOINTED, said)


def busy(reason: str, for_: float | timedelta) -> None:
    """Say that the GPUs are in use for a good reason although they look idle.

    Args:
        reason: in a few words: ``loading the data set``.
        for_: how long from now, in seconds or as a timedelta; 0 takes back what was said before.

    Raises:
        ValueError: if ``for_`` is negative or not a number.
    """
    seconds = for_.total_seconds() if isinstance(for_, timedelta) else float(for_)
    if not math.isfinite(seconds) or seconds < 0:
        raise ValueError(f"for_ must be a number of seconds from 0 on, or a timedelta, not {for_}")
    now = time.time()
    _say(find_place(), files.BUSY, {"at": now, "until": now + seconds, "reason": reason})


def stop_here() -> None:
    """Say that all is saved, and wait for the stop, which follows at once.

    To return would mean that the work is done, and to raise that it has failed, so this does neither: it
    blocks until the process is stopped. It returns only if the run is not under notice, or the notice is
    taken back: go on with the work then. Save first; with several processes call it in each.

    If the process that began this one has ended, nobody is left to stop this one: it ends itself, first by
    SIGTERM.
    """
    place = find_place()
    watch = watch_of(place)
    if watch is None or place.channel is None:
        return
    answer = files.stop_here_file(place.step)
    orphaned_at = None
    while watch.notice(at_once=True) is not None:
        # Each time: the daemon removes an answer to an earlier notice, and the folder may fill up.
        if not (place.channel / answer).exists():
            said: dict[str, Any] = {"at": time.time()}
            if place.step is not None:
                said["step"] = place.step
            _say(place, answer, said)
        if orphaned_at is None and os.getppid() != _parent:
            orphaned_at = time.monotonic()
            os.kill(os.getpid(), signal.SIGTERM)
        elif orphaned_at is not None and time.monotonic() - orphaned_at > _TERM_TAKES:
            os._exit(1)
        time.sleep(LOOK_EVERY)
    with suppress(OSError):
        (place.channel / answer).unlink(missing_ok=True)


def _note_parent() -> None:
    global _parent
    _parent = os.getppid()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_parent)


def _say(place: Place, name: str, data: dict[str, Any]) -> None:
    """Write a file of the channel, if there is one. Work goes on whether it can be written or not."""
    if place.channel is None or not place.channel.is_dir():
        return
    path: Path = place.channel / name
    try:
        files.write(path, data)
        _unwritten.discard(str(path))
    except OSError as error:
        if str(path) not in _unwritten:
            _unwritten.add(str(path))
            _logger.warning(
                "The queue daemon does not hear of %s, because %s cannot be written: %s",
                name.removesuffix(".json"),
                path,
                error,
            )
