"""What a run launcher says of its workers, where it can: asked beside the passes, since it may hang.

Launchers for containers and clusters can look for a run's worker (``check_run_worker_health``). Dagster's own
asks them under ``run_monitoring`` only; GPUs depend on the answer always.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass

from dagster import DagsterInstance, DagsterRun

from dagster_gpufair.gate.dagster_internals import WorkerStatus

ASK_AGAIN = 30.0
"""Seconds between two questions about a run that goes on."""
GONE_FOR = 20.0
"""Seconds: that a worker is gone counts when it is said twice, so far apart."""
PATIENCE = 30.0
"""Seconds that a lease whose run is over waits for an answer; then nobody can tell."""
MOST_HANGING = 3
"""So many questions may hang; then no more are asked until one is answered."""

_GONE = (WorkerStatus.NOT_FOUND, WorkerStatus.FAILED, WorkerStatus.SUCCESS)
"""A worker that has ended well while its run goes on had a last word that was lost."""


@dataclass
class _Asked:
    run: DagsterRun
    is_over: bool = False
    since: float = 0.0
    """When it was first asked after the run was over."""
    answered_at: float | None = None
    status: WorkerStatus | None = None
    gone_since: float | None = None


class WorkerHealth:
    """Asks the launcher about one run after the other, in a thread of its own; in another if that hangs."""

    def __init__(self, instance: DagsterInstance, logger: logging.Logger):
        self._launcher = instance.run_launcher
        self._monitored = instance.run_monitoring_enabled
        self._logger = logger
        self._asked: dict[str, _Asked] = {}
        self._changed = threading.Condition()
        self._asking: dict[str, float] = {}
        """The runs that are being asked about, since when."""
        self._threads = 0

    @property
    def can_tell(self) -> bool:
        """Whether the launcher can look for workers."""
        return bool(self._launcher.supports_check_run_worker_health)

    def forget_but(self, run_ids: set[str]) -> None:
        """Only these runs are of interest any more."""
        with self._changed:
            self._asked = {id_: each for id_, each in self._asked.items() if id_ in run_ids}

    def alive(self, run: DagsterRun) -> bool | None:
        """Whether the worker of a run that goes on is there; None where nobody can tell.

        With ``run_monitoring`` Dagster looks after it, and may resume it: it is not for us to end then.
        """
        if self._monitored:
            return None
        asked = self._ask(run, is_over=False)
        if asked.status == WorkerStatus.RUNNING:
            return True
        if asked.gone_since is None or asked.answered_at is None:
            return None
        return None if asked.answered_at - asked.gone_since < GONE_FOR else False

    def is_known(self, run: DagsterRun) -> bool:
        """Whether the launcher has said, of a run that is over, what there is to say, or may not any more."""
        asked = self._ask(run, is_over=True)
        answered = asked.answered_at is not None and asked.answered_at >= asked.since
        return answered or time.monotonic() - asked.since > PATIENCE

    def lives_on(self, run: DagsterRun) -> bool | None:
        """Whether the worker of a run that is over is there; None where nobody can tell."""
        asked = self._ask(run, is_over=True)
        if asked.answered_at is None or asked.answered_at < asked.since:
            return None
        if asked.status == WorkerStatus.UNKNOWN:
            return None
        return asked.status == WorkerStatus.RUNNING

    def _ask(self, run: DagsterRun, *, is_over: bool) -> _Asked:
        with self._changed:
            asked = self._asked.setdefault(run.run_id, _Asked(run))
            if is_over and not asked.is_over:
                asked.is_over, asked.since, asked.run = True, time.monotonic(), run
            self._staff()
            self._changed.notify_all()
            return asked

    def _staff(self) -> None:
        """One thread that does not hang, while there are few that do."""
        now = time.monotonic()
        hanging = [id_ for id_, since in self._asking.items() if now - since > PATIENCE]
        if self._threads > len(hanging) or len(hanging) >= MOST_HANGING:
            return
        if hanging:
            self._logger.error(
                "The run launcher does not say how the worker of %s is, for %.0f s: it is not asked again "
                "about it, and others are asked about in another thread.",
                hanging[-1],
                PATIENCE,
            )
        self._threads += 1
        threading.Thread(target=self._work, name="gpufair-worker-health", daemon=True).start()

    def _next(self) -> _Asked | None:
        """What is over and not answered comes first, then what was asked longest ago."""
        now = time.monotonic()
        due = [
            each
            for each in self._asked.values()
            if each.run.run_id not in self._asking and self._is_due(each, now)
        ]
        return min(due, key=lambda each: (not each.is_over, each.answered_at or 0.0), default=None)

    @staticmethod
    def _is_due(asked: _Asked, now: float) -> bool:
        if asked.answered_at is None:
            return True
        if asked.is_over:
            return asked.answered_at < asked.since or (
                asked.status == WorkerStatus.RUNNING and now - asked.answered_at >= 1.0
            )
        return now - asked.answered_at >= (ASK_AGAIN if asked.gone_since is None else GONE_FOR)

    def _work(self) -> None:
        while True:
            with self._changed:
                asked = self._next()
                if asked is None:
                    if not self._asked:
                        self._threads -= 1
                        return
                    self._changed.wait(timeout=1.0)
                    continue
                self._asking[asked.run.run_id] = time.monotonic()
            try:
                status = self._launcher.check_run_worker_health(asked.run).status
            except Exception:
                self._logger.exception("Nobody can tell how the worker of %s is", asked.run.run_id)
                status = WorkerStatus.UNKNOWN
            with self._changed:
                now = time.monotonic()
                hung = now - self._asking.pop(asked.run.run_id) > PATIENCE
                asked.status, asked.answered_at = status, now
                if status not in _GONE:
                    asked.gone_since = None
                elif asked.gone_since is None:
                    asked.gone_since = now
                if hung:
                    # Another has gone on in its place.
                    self._threads -= 1
                    return
