"""Says on runs' pages what is new, beside the passes: a tag write and an event cost milliseconds each.

What ends comes first, then the first in line. What is said is bounded (`PER_PASS` of those that wait a
pass), and nothing that matters is lost: the ledger keeps what was told, so that what was to be told can be
derived from it anew, by whatever daemon.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice

from dagster import DagsterInstance

from dagster_gpufair.gate.page.run_page import Word, say, untold_word
from dagster_gpufair.gate.page.waiting_line import WaitingLine, without_marks
from dagster_gpufair.ledger import lifecycle, requests
from dagster_gpufair.ledger.connect import Ledger
from dagster_gpufair.ledger.requests import RequestRecord

PER_PASS = 12
PLACES_AGAIN_AFTER = 30.0
"""So many seconds apart, changed places in line are worth a tag."""
UNTOLD_AGAIN_AFTER = 60.0
"""So many seconds apart, the ledger is asked whose end was not told."""
UNTOLD = 200
"""So many of them at a time."""
IN_FRONT = 100
"""For so many at the front: their places, and their reasons anew when the policy has changed."""
MOST_TRIES = 20
"""So many passes, what could not be said of a run that holds GPUs is tried to be said."""
MOST_ENDED = 10_000
"""Of so many runs it is remembered that their end was told."""


@dataclass(frozen=True)
class Told:
    """What a run's page says now. ``reason`` is the reason with its marks, ``tag`` what its tag shows.

    ``policy`` is the version by which it was said; None if an earlier daemon said it.
    """

    reason: str
    tag: str
    policy: int | None


class Teller:
    """Keeps what was said of whom, and a thread that says what is new."""

    def __init__(self, instance: DagsterInstance, ledger: Ledger, logger: logging.Logger):
        self._instance = instance
        self._ledger = ledger
        self._logger = logger
        self._told: dict[str, Told] = {}
        self._places_at = self._untold_at = float("-inf")
        self._changed = threading.Condition()
        self._over: deque[Word] = deque()
        self._waiting: OrderedDict[str, Word] = OrderedDict()
        self._ended: OrderedDict[str, None] = OrderedDict()
        self._saying: str | None = None
        self._quiet: set[str] = set()
        self._later: list[Word] = []
        """What could not be said of runs that hold GPUs: said again with the next pass."""
        self._failed: dict[Word, int] = {}
        self._thread: threading.Thread | None = None

    def remember(self, waiting: Iterable[RequestRecord]) -> None:
        """Take from the ledger what an earlier daemon has said."""
        self._told = {
            record.run_id: Told(record.told_reason, "", None)
            for record in waiting
            if record.told_reason is not None
        }
        self._untold_at = float("-inf")

    def granted(self, run_id: str) -> None:
        """Whatever was said of a run before: should it wait again, that is news."""
        self._told.pop(run_id, None)
        with self._changed:
            self._waiting.pop(run_id, None)
            self._changed.wait_for(lambda: self._saying != run_id, timeout=5)

    @contextmanager
    def quiet(self, run_id: str) -> Iterator[None]:
        """Nothing is said of a run meanwhile; what is to be said waits.

        Dagster writes a run as a whole: of two who write its tags at once, one would take the other's away,
        such as the one by which its worker can be told to stop.
        """
        with self._changed:
            self._quiet.add(run_id)
            self._changed.wait_for(lambda: self._saying != run_id, timeout=5)
        try:
            yield
        finally:
            with self._changed:
                self._quiet.discard(run_id)
                self._changed.notify_all()

    def over(self, word: Word) -> None:
        """Have the last said of a run that holds no GPUs any more and waits for none."""
        self._told.pop(word.run_id, None)
        with self._changed:
            self._waiting.pop(word.run_id, None)
            if word.run_id not in self._ended:
                self._end(word)

    def news(self, word: Word) -> None:
        """Have something said at once of a run that holds GPUs."""
        with self._changed:
            self._over.append(word)
            self._wake()

    def speak(self, line: WaitingLine, now: float) -> None:
        """Have said what is new of those that wait, first in line first."""
        self._look_for_untold(now)
        with self._changed:
            for word in self._later:
                self._over.append(word)
                self._wake()
            self._later.clear()
            if not self._over:
                self._failed.clear()
            pending = len(self._waiting)
        for word in islice(self._news(line, now), max(0, PER_PASS - pending)):
            self._told[word.run_id] = Told(word.reason, word.tag, line.policy)
            with self._changed:
                self._waiting[word.run_id] = word
                self._wake()

    def finish(self, timeout: float | None = None) -> bool:
        """Wait until all that was to be said has been; False if that takes longer."""
        with self._changed:
            return self._changed.wait_for(
                lambda: not self._saying and not self._may_be_said(), timeout
            )

    def _may_be_said(self) -> bool:
        """Whether there is a word of a run that is not quiet."""
        if not self._quiet:
            return bool(self._over or self._waiting)
        return any(word.run_id not in self._quiet for word in self._over) or any(
            run_id not in self._quiet for run_id in self._waiting
        )

    def _next(self) -> Word:
        """What ends comes first, then the first in line; of runs that are not quiet."""
        for at, word in enumerate(self._over):
            if word.run_id not in self._quiet:
                del self._over[at]
                return word
        run_id = next(id_ for id_ in self._waiting if id_ not in self._quiet)
        return self._waiting.pop(run_id)

    def _look_for_untold(self, now: float) -> None:
        if 0 <= now - self._untold_at < UNTOLD_AGAIN_AFTER:
            return
        self._untold_at = now
        with self._ledger.reading() as session:
            found = requests.untold(session, UNTOLD)
        with self._changed:
            pending = {word.run_id for word in self._over} | {self._saying}
            for request in found:
                if request.run_id in pending:
                    continue
                if request.state == "granted":
                    self._over.append(untold_word(request))
                    self._wake()
                elif request.run_id not in self._ended:
                    self._end(untold_word(request))

    def _end(self, word: Word) -> None:
        self._ended[word.run_id] = None
        while len(self._ended) > MOST_ENDED:
            self._ended.popitem(last=False)
        self._over.append(word)
        self._wake()

    def _news(self, line: WaitingLine, now: float) -> Iterator[Word]:
        """A changed reason in a sentence; of the first in line also the same by a changed policy.

        Now and then their changed places.
        """
        for place, (run_id, reason, why) in enumerate(line.reasons()):
            before = self._told.get(run_id)
            by_another = before is not None and before.policy not in (None, line.policy)
            if before is None or before.reason != reason or (by_another and place < IN_FRONT):
                word = line.word(run_id, reason, why, now)
                is_new = before is None or without_marks(before.reason) != without_marks(reason)
                yield word if is_new else replace(word, cause=None)
        if 0 <= now - self._places_at < PLACES_AGAIN_AFTER:
            return
        self._places_at = now
        for run_id, reason, why in islice(line.reasons(), IN_FRONT):
            before = self._told.get(run_id)
            word = line.word(run_id, reason, why, now)
            if before is not None and before.tag != word.tag:
                yield replace(word, sentence=None, cause=None)

    # -- the thread -----------------------------------------------------------------------------

    def _wake(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._work, name="gpufair-teller", daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def _work(self) -> None:
        while True:
            with self._changed:
                if not self._changed.wait_for(self._may_be_said, timeout=10):
                    if self._over or self._waiting:
                        continue
                    self._thread = None
                    return
                word = self._next()
                self._saying = word.run_id
            try:
                say(self._instance, word)
                with self._ledger.writing() as session:
                    if word.cause is not None:
                        lifecycle.waits(session, word.run_id, *word.cause)
                    requests.told(session, word.run_id, word.state, word.reason)
            except Exception:
                self._logger.exception("Run %s could not be told: %s", word.run_id, word.tag)
                # What waits is news again in the next pass; whose end was not told, the ledger knows.
                self._told.pop(word.run_id, None)
                with self._changed:
                    self._ended.pop(word.run_id, None)
                    tries = self._failed.get(word, 0) + 1
                    if word.state == "granted" and tries < MOST_TRIES:
                        self._failed[word] = tries
                        self._later.append(word)
            finally:
                with self._changed:
                    self._saying = None
                    self._changed.notify_all()
