"""What is tried until it is done, in threads of its own, with growing pauses: stops, and going on after one.

A try is only asked for: it may hang, and may do nothing. What it comes to is seen by the next passes. What is
to be done stands in the ledger, so after a restart the tries go on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

FIRST_PAUSE = 15.0
LONGEST_PAUSE = 900.0
"""Seconds between two tries; each pause is twice as long as the one before."""
MOST_HANGING = 3
"""So many tries of one thing may hang; then no more are made until one returns."""


_K = TypeVar("_K", bound=Hashable)
_T = TypeVar("_T")


@dataclass
class _Tries:
    next_at: float = 0.0
    made: int = 0
    hanging: int = 0


class Tries(Generic[_K, _T]):
    """Tries to do the same to several things, each by its key.

    Args:
        name: of the threads.
        attempt: one try. It must not raise.
    """

    def __init__(
        self,
        name: str,
        attempt: Callable[[_T], None],
        clock: Callable[[], float] = time.monotonic,
    ):
        self._name = name
        self._attempt = attempt
        self._clock = clock
        self._tries: dict[_K, _Tries] = {}
        self._lock = threading.Lock()

    def due(self, wanted: Mapping[_K, _T]) -> dict[_K, _T]:
        """Those for which a try is due now; what is not wanted any more is forgotten."""
        now = self._clock()
        with self._lock:
            self._tries = {key: tries for key, tries in self._tries.items() if key in wanted}
            return {
                key: each
                for key, each in wanted.items()
                if (tries := self._tries.setdefault(key, _Tries())).next_at <= now
                and tries.hanging < MOST_HANGING
            }

    def try_(self, key: _K, what: _T, before: int = 0) -> None:
        """Make one try, beside everything else.

        Args:
            before: tries that were made by others before this process began.

        Raises:
            RuntimeError: if this machine has no thread left: that was no try.
        """
        with self._lock:
            tries = self._tries.setdefault(key, _Tries())
            tries.made = max(tries.made, before)
            pause = min(FIRST_PAUSE * 2**tries.made, LONGEST_PAUSE)
            tries.made += 1
            tries.hanging += 1
            tries.next_at = self._clock() + pause
        # A daemon thread: a try that never returns must not keep the process from ending.
        thread = threading.Thread(
            target=self._work, args=(what, tries), name=f"{self._name}-{key}", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:
            with self._lock:
                tries.hanging -= 1
            raise

    def _work(self, what: _T, tries: _Tries) -> None:
        try:
            self._attempt(what)
        finally:
            with self._lock:
                tries.hanging -= 1
