"""Telling people what happens to their runs, as it happens: by a function that the platform team names.

The function is called once for each event, in a thread beside the passes: it may be slow, hang or fail. How
far the record has been told stands in the ledger, and is written before the call, so that nobody is told
twice.
"""

from __future__ import annotations

import importlib
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dagster_gpufair.engine.writer_turn import Overtaken, WriterTurn
from dagster_gpufair.ledger import events, status
from dagster_gpufair.ledger.connect import Ledger
from dagster_gpufair.ledger.events import Event
from dagster_gpufair.policy.quantities import format_gpus

ALERTED = "alerted"
"""The key of `status` under which stands the last event that was told."""
AT_ONCE = 200
"""So many events are read at a time."""
HANGS_AFTER = 60.0
"""Seconds after which a call is said to hang."""


@dataclass(frozen=True)
class Alert:
    """One event that concerns people. ``at`` in seconds since the epoch; ``data`` as in the ledger."""

    kind: str
    message: str
    at: float
    run_id: str | None
    team: str | None
    pool: str | None
    data: Mapping[str, Any]


Tell = Callable[[Alert], object]


class NoSuchFunction(ValueError):
    """The setting names no function that can be imported."""


def function_of(setting: str) -> Tell:
    """The function that ``module:function`` names.

    Raises:
        NoSuchFunction: if there is none.
    """
    module, _, name = setting.partition(":")
    try:
        found = getattr(importlib.import_module(module), name) if name else None
    except (ImportError, AttributeError) as error:
        raise NoSuchFunction(f"on_event: {setting} cannot be imported: {error}") from error
    if not callable(found):
        raise NoSuchFunction(
            f"on_event: {setting} is no function; write module:function, such as gpu_alerts:tell"
        )
    return found


class Alerts:
    """Tells what is new in the ledger's record, in one thread."""

    def __init__(self, ledger: Ledger, turn: WriterTurn, tell: Tell | None, logger: logging.Logger):
        self._ledger = ledger
        self._turn = turn
        self._tell = tell
        self._logger = logger
        self._thread: threading.Thread | None = None
        self._calling_since: float | None = None
        self._said = False

    def look(self) -> None:
        """Have told what has happened since the last look."""
        if self._tell is None:
            return
        if self._thread is not None and self._thread.is_alive():
            since = self._calling_since
            if since is not None and time.monotonic() - since > HANGS_AFTER and not self._said:
                self._said = True
                self._logger.error(
                    "The function of on_event has not returned for %.0f s: nothing more is told before "
                    "it does.",
                    HANGS_AFTER,
                )
            return
        self._said = False
        self._thread = threading.Thread(target=self._work, name="gpufair-alerts", daemon=True)
        self._thread.start()

    def finish(self, timeout: float | None = None) -> None:
        """Wait until what was begun to be told has been."""
        if self._thread is not None:
            self._thread.join(timeout)

    def _work(self) -> None:
        try:
            for event in self._new():
                say = _MESSAGES.get(event.kind)
                if say is not None:
                    self._call(event, say(event.data))
        except Overtaken:
            pass
        except Exception:
            self._logger.exception("What has happened could not be told; it is tried again")

    def _new(self) -> list[Event]:
        """What nobody was told yet; of the time before the first look, nothing."""
        with self._ledger.reading() as session:
            told = status.get(session, ALERTED)
            new = [] if told is None else list(events.since(session, told, AT_ONCE))
            last = events.newest(session) if told is None else new[-1].id if new else told
        if last != told:
            with self._turn.writing() as session:
                status.put(session, ALERTED, last, time.time())
        return new

    def _call(self, event: Event, message: str) -> None:
        assert self._tell is not None
        alert = Alert(
            event.kind, message, event.at, event.run_id, event.team, event.pool, event.data
        )
        self._calling_since = time.monotonic()
        try:
            self._tell(alert)
        except Exception:
            self._logger.exception("The function of on_event failed for: %s", message)
        finally:
            self._calling_since = None


def _until(data: Mapping[str, Any]) -> str:
    return time.strftime("%H:%M:%S %Z", time.localtime(float(data["until"])))


_MESSAGES: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "proposed": lambda data: (
        f"A person has to approve that {len(data['victims'])} runs are stopped for this one: "
        f"`gpufair approve {data['request'][:8]}`."
    ),
    "notice": lambda data: (
        f"This run is stopped at {_until(data)} for {data['for'][:8]} (rule {data['rule']}). Save its work."
    ),
    "spared": lambda data: "This run goes on: its notice was taken back.",
    "preempted": lambda data: (
        "This run was stopped for other work. A new run goes on with it from the step that was stopped."
    ),
    "continued": lambda data: (
        f"This run goes on with the work of {data['of'][:8]}, and waits for GPUs."
    ),
    "lingering": lambda data: "This run is over, and processes of it still hold its GPUs.",
    "ungated": lambda data: f"This run uses {format_gpus(int(data['gpus']))} GPUs without a grant.",
    "paused": lambda data: f"{str(data['what']).capitalize()} is paused by {data['by']}.",
    "resumed": lambda data: (
        f"{str(data['what']).capitalize()} is switched on again by {data['by']}."
    ),
}
"""What is told of which kind of event."""
