"""The channels of all runs that hold GPUs, beside the passes of the queue daemon.

Every file operation may hang, on a dead mount, or fail, in a folder that cannot be written. So the passes
only say what is to stand in a channel, and are told what was last read there; threads do the rest. The newest
wish counts, what fails is tried again with growing pauses, and what hangs is left alone while others are
served.
"""

from __future__ import annotations

import heapq
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from dagster_gpufair.gate.channels.folder import Content, Folder
from dagster_gpufair.gate.channels.words import NOTHING, Heard, Lease, Notice

LOOK_EVERY = 10.0
"""Seconds between two looks at the channel of a run that nobody wants to stop."""
LOOK_EVERY_UNDER_NOTICE = 0.5
"""Seconds between two looks at one whose stop may follow at once."""
LOOKS_A_SECOND = 100
"""Looks at channels that are not under notice, at most: with many runs each is looked at less often."""
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
"""Seconds until what failed is tried again."""
PATIENCE = 30.0
"""Seconds after which an operation hangs, and another thread goes on in its place."""
MOST_HANGING = 3
"""So many may hang; then nothing is done until one of them returns."""


@dataclass(slots=True)
class _Channel:
    """What is to stand in a channel, and what is known of it."""

    folder: Folder
    content: Content
    is_closing: bool = False
    wished: int = 1
    """Counts what was wished; ``done`` is the wish that stands there."""
    done: int = 0
    heard: Heard = NOTHING
    due: float = 0.0
    """When it is next looked at, by the monotonic clock; 0: before all others."""
    pause: float = 0.0
    in_hand: bool = False
    trouble: str = ""
    """What went wrong last."""
    wrong: tuple[str, ...] = field(default=())
    """What is wrong with the files that its code wrote."""


class Channels:
    """Says to runs what they are to know, and keeps what they said last.

    Args:
        root: the folder of the channels, one for each run. It is made if it is not there.
        checkpoints: the folder of the checkpoints, one for each request.
    """

    def __init__(
        self,
        root: Path,
        checkpoints: Path,
        logger: logging.Logger,
        clock: Callable[[], float] = time.time,
    ):
        self._root = root
        self._checkpoints = checkpoints
        self._logger = logger
        self._clock = clock
        self._changed = threading.Condition()
        self._channels: dict[str, _Channel] = {}
        self._line: list[tuple[float, int, str]] = []
        """A heap of when channels are due; entries that are no longer true are passed over."""
        self._entries = 0
        self._troubles: Counter[str] = Counter()
        """How many channels have which trouble."""
        self._working: dict[int, tuple[float, str]] = {}
        """What each thread has in hand, since when."""
        self._threads = 0
        self._hanging_said: set[int] = set()

    # -- what the passes say --------------------------------------------------------------------

    def open(self, run_id: str, lease: Lease, notice: Notice | None = None) -> None:
        """Have a run find its lease, and the notice that it is under; without one, none.

        It may be called again at any time, and costs nothing if nothing is new. A daemon that has just
        started calls it for all leases, with the notices that the ledger has.
        """
        self._wish(run_id, Content(lease, notice))

    def notify(self, run_id: str, until: float, rule: str, asked_by: str) -> None:
        """Have a run find that it is to be stopped.

        Args:
            until: when, in seconds since the epoch.
            rule: by which rule of the policy, such as ``reclaim``.
            asked_by: for what, in words.
        """
        with self._changed:
            channel = self._channels.get(run_id)
            lease = channel.content.lease if channel else None
            self._wish(run_id, Content(lease, Notice(until, rule, asked_by)))

    def spare(self, run_id: str) -> None:
        """Have a run find that it is not stopped after all."""
        with self._changed:
            channel = self._channels.get(run_id)
            if channel is not None and not channel.is_closing:
                self._wish(run_id, Content(channel.content.lease))

    def close(self, run_id: str) -> None:
        """Remove the channel of a run that holds no GPUs any more, whether this daemon knows it or not."""
        with self._changed:
            channel = self._channels.get(run_id)
            content = channel.content if channel else Content()
            self._wish(run_id, content, is_closing=True)

    def heard(self, run_ids: Iterable[str]) -> Mapping[str, Heard]:
        """What these runs said, as it was last read; those of which nothing was read yet are left out."""
        with self._changed:
            self._staff()
            found = {run_id: self._channels.get(run_id) for run_id in run_ids}
            return {
                run_id: channel.heard
                for run_id, channel in found.items()
                if channel is not None and not channel.is_closing and channel.heard is not NOTHING
            }

    def finish(self, timeout: float | None = None) -> bool:
        """Wait until all that was to be written has been; False if that takes longer."""
        return self.wait_for(
            lambda: all(each.done == each.wished for each in self._channels.values()), timeout
        )

    def end(self, timeout: float | None = None) -> None:
        """Write what was to be written, and leave all channels as they are."""
        self.finish(timeout)
        with self._changed:
            self._channels.clear()
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._working, timeout)

    def wait_for(self, is_so: Callable[[], bool], timeout: float | None = None) -> bool:
        """Wait until something is so: it is asked again after each look at a channel."""
        with self._changed:
            return self._changed.wait_for(is_so, timeout)

    def _wish(self, run_id: str, content: Content, *, is_closing: bool = False) -> None:
        with self._changed:
            channel = self._channels.get(run_id)
            if channel is None:
                folder = Folder(self._root, self._checkpoints, run_id, self._clock)
                channel = self._channels[run_id] = _Channel(folder, content)
            elif (channel.content, channel.is_closing) == (content, is_closing):
                return
            else:
                channel.wished += 1
            if (channel.content.notice is None) != (content.notice is None):
                channel.heard = _but_to_stop(channel.heard)
            channel.content, channel.is_closing = content, is_closing
            channel.pause = 0.0
            self._due(run_id, channel, 0.0)
            self._staff()
            self._changed.notify_all()

    # -- the threads ----------------------------------------------------------------------------

    def _due(self, run_id: str, channel: _Channel, at: float) -> None:
        channel.due = at
        self._entries += 1
        heapq.heappush(self._line, (at, self._entries, run_id))

    def _staff(self) -> None:
        """One thread that does not hang, while there are few that do."""
        if not self._channels:
            return
        now = time.monotonic()
        hanging = {
            thread: run_id
            for thread, (since, run_id) in self._working.items()
            if now - since > PATIENCE
        }
        for thread in hanging.keys() - self._hanging_said:
            self._logger.error(
                "The folder %s has not answered for %.0f s (run %s): runs there may not see their notices, "
                "nor the daemon their checkpoints.",
                self._root,
                PATIENCE,
                hanging[thread],
            )
            self._hanging_said.add(thread)
        if self._threads > len(hanging) or len(hanging) >= MOST_HANGING:
            return
        self._threads += 1
        threading.Thread(target=self._work, name="gpufair-channels", daemon=True).start()

    def _next(self) -> tuple[str, _Channel] | float:
        """What is due, or in how many seconds something is."""
        while self._line:
            at, _, run_id = self._line[0]
            channel = self._channels.get(run_id)
            if channel is None or channel.due != at or channel.in_hand:
                heapq.heappop(self._line)
                continue
            wait = at - time.monotonic()
            if wait > 0:
                return wait
            heapq.heappop(self._line)
            return run_id, channel
        return 10.0

    def _work(self) -> None:
        me = threading.get_ident()
        while True:
            with self._changed:
                found = self._next()
                if isinstance(found, float):
                    if not self._channels:
                        self._threads -= 1
                        self._changed.notify_all()
                        return
                    self._changed.wait(timeout=found)
                    continue
                run_id, channel = found
                wished, content, is_closing = channel.wished, channel.content, channel.is_closing
                checkpoints = self._unused_checkpoints(run_id, channel) if is_closing else None
                channel.in_hand = True
                self._working[me] = (time.monotonic(), run_id)
            heard, wrong, trouble = self._serve(channel.folder, content, is_closing, checkpoints)
            with self._changed:
                since, _ = self._working.pop(me)
                channel.in_hand = False
                self._served(run_id, channel, wished, heard, wrong, trouble)
                hung = me in self._hanging_said
                self._hanging_said.discard(me)
                self._changed.notify_all()
                if hung or time.monotonic() - since > PATIENCE:
                    # Another has gone on in its place, or will as soon as it is needed.
                    self._threads -= 1
                    self._staff()
                    return

    def _unused_checkpoints(self, run_id: str, channel: _Channel) -> Path | None:
        """The folder for checkpoints of a run whose work does not go on in another that is known."""
        lease = channel.content.lease
        if lease is None:
            return None
        for other, each in self._channels.items():
            theirs = each.content.lease
            if other != run_id and theirs is not None and theirs.request == lease.request:
                return None
        return channel.folder.checkpoints_of(lease)

    def _serve(
        self, folder: Folder, content: Content, is_closing: bool, checkpoints: Path | None
    ) -> tuple[Heard | None, tuple[str, ...], str]:
        try:
            if is_closing:
                folder.remove(checkpoints)
                return None, (), ""
            heard, wrong, failed = folder.bring(content)
        except OSError as error:
            return None, (), _in_words(error, folder)
        except Exception as error:
            self._logger.exception("The channel %s could not be served", folder.path)
            return None, (), str(error)
        return heard, wrong, _in_words(failed, folder) if failed is not None else ""

    def _served(
        self,
        run_id: str,
        channel: _Channel,
        wished: int,
        heard: Heard | None,
        wrong: tuple[str, ...],
        trouble: str,
    ) -> None:
        self._say_trouble(run_id, channel, trouble)
        if heard is not None or not trouble:
            channel.done = wished
        if heard is not None:
            self._say_wrong(run_id, channel, wrong)
            # What was read beside another notice says nothing under this one.
            is_told = channel.done == channel.wished and channel.content.notice is not None
            channel.heard = heard if is_told else _but_to_stop(heard)
        if channel.wished != wished:
            self._due(run_id, channel, 0.0)
        elif trouble:
            channel.pause = min(max(FIRST_PAUSE, channel.pause * 2), LONGEST_PAUSE)
            self._due(run_id, channel, time.monotonic() + self._until_next_look(channel))
        elif channel.is_closing:
            self._channels.pop(run_id, None)
        else:
            channel.pause = 0.0
            self._due(run_id, channel, time.monotonic() + self._until_next_look(channel))

    def _until_next_look(self, channel: _Channel) -> float:
        """Seconds."""
        usual = max(LOOK_EVERY, len(self._channels) / LOOKS_A_SECOND)
        if channel.content.notice is not None:
            usual = LOOK_EVERY_UNDER_NOTICE
        if not channel.pause:
            return usual
        # What is heard although something else has failed is heard as soon as ever.
        return channel.pause if channel.done != channel.wished else min(usual, channel.pause)

    def _say_trouble(self, run_id: str, channel: _Channel, trouble: str) -> None:
        """Each kind of trouble is said once, however many runs have it, until none has it any more."""
        # Each run has a path of its own.
        kind, was = trouble.split(":")[0], channel.trouble.split(":")[0]
        channel.trouble = trouble
        if kind == was:
            return
        if was:
            self._troubles[was] -= 1
            if not self._troubles[was]:
                self._logger.info("All runs can be told and heard again: no more '%s'.", was)
        if kind:
            self._troubles[kind] += 1
            if self._troubles[kind] == 1:
                self._logger.error(
                    "Run %s may not see its notice, nor the daemon its checkpoints (%s). This is tried "
                    "again; the same error of other runs is not logged.",
                    run_id,
                    trouble,
                )

    def _say_wrong(self, run_id: str, channel: _Channel, wrong: tuple[str, ...]) -> None:
        new = [each for each in wrong if each not in channel.wrong]
        channel.wrong = wrong
        if new:
            self._logger.warning(
                "In the channel of run %s, %s: ignored.", run_id, ", and ".join(new)
            )


def _in_words(error: OSError, folder: Folder) -> str:
    return f"{error.strerror or error}: {error.filename or folder.path}"


def _but_to_stop(heard: Heard) -> Heard:
    """Without the word that the run may be stopped, which belongs to a notice."""
    return replace(heard, may_stop=False, steps=frozenset()) if heard.may_stop else heard
