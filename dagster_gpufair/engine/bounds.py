"""Runs that said how long they take at most: told before the end, and stopped at it."""

from __future__ import annotations

from collections.abc import Iterable

from dagster_gpufair.ledger.leases import LeaseRecord

NOTICE = 300.0
NOTICE_PART = 0.1
"""Notice comes this many seconds before the end, or when this part of a short run's time is left."""
STOP_AGAIN_AFTER = 60.0
"""Seconds after which a run that is still there is told to stop again."""


class Bounds:
    """Which leases are nearing their end and which are past it, each reported once."""

    def __init__(self) -> None:
        self._stopped: dict[str, float] = {}

    def due(
        self, leases: Iterable[LeaseRecord], now: float
    ) -> tuple[list[LeaseRecord], list[LeaseRecord]]:
        """(to be given notice, to be stopped) now. A lease that is past its end comes again later."""
        notice, stop = [], []
        stopped = {}
        for lease in leases:
            if lease.max_duration is None:
                continue
            end = lease.started_at + lease.max_duration
            if now >= end:
                last = self._stopped.get(lease.request_id)
                if last is None or now - last >= STOP_AGAIN_AFTER:
                    last = now
                    stop.append(lease)
                stopped[lease.request_id] = last
            elif lease.warned_at is None and now >= end - min(
                NOTICE, NOTICE_PART * lease.max_duration
            ):
                notice.append(lease)
        self._stopped = stopped
        return notice, stop
