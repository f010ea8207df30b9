"""Stopping what holds GPUs: tried until it is gone, in threads of its own, with growing pauses.

A stop frees nothing: it is asked for, may hang, and may do nothing. What it comes to is seen by the
next passes. That a lease is to be stopped stands in the ledger, so after a restart the tries go on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from dagster_gpufair.ledger.leases import LeaseRecord

FIRST_PAUSE = 15.0
LONGEST_PAUSE = 900.0
"""Seconds between two tries; each pause is twice as long as the one before."""
MOST_HANGING = 3
"""So many tries of one stop may hang; then no more are made until one returns."""


@dataclass
class _Tries:
    next_at: float = 0.0
    made: int = 0
    hanging: int = 0


class Stops:
    """Tries to stop the holders of leases.

    Args:
        stop: asks a holder to end. It must not raise.
    """

    def __init__(
        self, stop: Callable[[LeaseRecord], None], clock: Callable[[], float] = time.monotonic
    ):
        self._stop = stop
        self._clock = clock
        self._tries: dict[int, _Tries] = {}
        self._lock = threading.Lock()

    def due(self, stopping: Iterable[LeaseRecord]) -> list[LeaseRecord]:
        """Those of the leases that are to be stopped for which a try is due now."""
        now, wanted = self._clock(), {lease.id: lease for lease in stopping}
        with self._lock:
            self._tries = {id_: tries for id_, tries in self._tries.items() if id_ in wanted}
            return [
                lease
                for lease in wanted.values()
                if (tries := self._tries.setdefault(lease.id, _Tries())).next_at <= now
                and tries.hanging < MOST_HANGING
            ]

    def try_(self, lease: LeaseRecord) -> None:
        """Make one try, beside everything else."""
        with self._lock:
            tries = self._tries.setdefault(lease.id, _Tries())
            pause = min(FIRST_PAUSE * 2 ** max(tries.made, lease.stop_tries), LONGEST_PAUSE)
            tries.made = max(tries.made, lease.stop_tries) + 1
            tries.hanging += 1
            tries.next_at = self._clock() + pause
        # A daemon thread: a stop that never returns must not keep the process from ending.
        thread = threading.Thread(
            target=self._work, args=(lease, tries), name=f"gpufair-stop-{lease.id}", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:
            # This machine has no thread left: that was no try.
            with self._lock:
                tries.hanging -= 1
            raise

    def _work(self, lease: LeaseRecord, tries: _Tries) -> None:
        try:
            self._stop(lease)
        finally:
            with self._lock:
                tries.hanging -= 1
