"""Whether this run is to be stopped, and how much time is left."""

from __future__ import annotations

import logging
import os
import time
from dataclasses import dataclass
from pathlib import Path

from dagster_gpufair.preemption import files
from dagster_gpufair.preemption.place import Place, find_place

LOOK_EVERY = 0.5
"""Seconds: the channel's folder is looked at this often at most, however often one asks."""
_MOST_WATCHED = 64
_logger = logging.getLogger("dagster_gpufair.preemption")


@dataclass(frozen=True, slots=True)
class Notice:
    """A notice. ``deadline`` is by this process's monotonic clock; ``signature`` tells files apart."""

    deadline: float
    signature: tuple[int, int, int]


class Watch:
    """Looks at one channel's notice.

    No lock: two threads that look at once find the same, and a process that is forked meanwhile is not stuck.
    """

    def __init__(self, channel: Path):
        self._channel = channel
        self._looked_at: float | None = None
        self._notice: Notice | None = None

    def notice(self, *, at_once: bool = False) -> Notice | None:
        """The notice that the run is under now, or was when it was last looked at.

        Args:
            at_once: look now, however short ago it was looked at.
        """
        now = time.monotonic()
        before = self._looked_at
        if before is None or at_once or now - before >= LOOK_EVERY:
            # Later looks, of other threads too, take this one's answer while it is under way.
            self._looked_at = now
            self._notice = self._look(before, now)
        return self._notice

    def _look(self, before: float | None, now: float) -> Notice | None:
        path = self._channel / files.NOTICE
        try:
            # On NFS, listing a folder shows new files sooner than looking for one of them.
            if files.NOTICE not in os.listdir(self._channel):  # noqa: PTH208
                return None
            found = path.stat()
        except OSError:
            # Never there: no channel. Gone, or out of reach: the GPUs are no longer this run's, or
            # nobody knows, and what was said last still holds.
            return self._notice
        signature = (found.st_mtime_ns, found.st_ino, found.st_size)
        if self._notice is not None and self._notice.signature == signature:
            return self._notice
        said = files.read(path) or {}
        until = files.number(said, "until")
        if until is None:
            return self._notice
        left = _seconds_left(until, files.number(said, "seconds_left"), before, now)
        if self._notice is None:
            _logger.warning("%s", _in_words(said, left))
        return Notice(now + left, signature)


def should_stop() -> bool:
    """Whether this run is under notice: it is to save its work, and will be stopped.

    Cheap enough for every step of a training loop: it looks at a folder at most twice a second.
    """
    return current_notice() is not None


def time_left() -> float | None:
    """Seconds until this run is stopped; None if it is not under notice, 0 if the time is over."""
    notice = current_notice()
    return None if notice is None else max(0.0, notice.deadline - time.monotonic())


def current_notice() -> Notice | None:
    """The notice that this run is under."""
    watch = watch_of(find_place())
    return None if watch is None else watch.notice()


_watches: dict[Path, Watch] = {}


def watch_of(place: Place) -> Watch | None:
    """The one watch of a channel in this process."""
    if place.channel is None:
        return None
    watch = _watches.get(place.channel)
    if watch is None:
        if len(_watches) >= _MOST_WATCHED:
            _watches.clear()
        watch = _watches[place.channel] = Watch(place.channel)
    return watch


def _seconds_left(
    until: float, seconds_left: float | None, before: float | None, now: float
) -> float:
    """How long a notice gives that was found just now.

    ``until`` is by the daemon's clock, and this machine's may differ from it by hours. So the notice also
    says how many seconds were left when it was written. The clock only tells how long ago that was: at least
    no time, and at most the time since this process looked and found another notice, or none.
    """
    if seconds_left is None:
        return max(0.0, until - time.time())
    age = max(0.0, time.time() - (until - seconds_left))
    if before is not None:
        age = min(age, now - before)
    return max(0.0, seconds_left - age)


def _in_words(said: dict[str, object], left: float) -> str:
    by, rule = said.get("for"), said.get("rule")
    asked = f" for {by}" if isinstance(by, str) and by else ""
    named = f" (rule: {rule})" if isinstance(rule, str) and rule else ""
    return f"This run is to be stopped in {left:.0f} s{asked}{named}."
