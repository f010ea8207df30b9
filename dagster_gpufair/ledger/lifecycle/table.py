"""The states of requests and leases, and which transition leaves which of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from dagster_gpufair.ledger.events import EventKind
from dagster_gpufair.ledger.leases import LeaseState

OPEN: tuple[LeaseState, ...] = (
    "granted",
    "launching",
    "running",
    "notice",
    "stopping",
    "ending",
)
"""The states of a lease in which its GPUs are held."""
CLOSED: tuple[LeaseState, ...] = ("released", "recalled", "preempted")


class Transition(NamedTuple):
    """From which states to which, and the event that tells of it. No states: it comes to be."""

    leaves: tuple[str, ...]
    enters: str
    event: EventKind


REQUESTS: Mapping[str, Transition] = {
    "submit": Transition((), "queued", "submitted"),
    "refuse": Transition(("queued",), "refused", "refused"),
    "cancel": Transition(("queued",), "cancelled", "cancelled"),
    "grant": Transition(("queued",), "granted", "granted"),
    "recall": Transition(("granted",), "queued", "recalled"),
    "preempt": Transition(("granted",), "queued", "preempted"),
    "release": Transition(("granted",), "released", "released"),
}
LEASES: Mapping[str, Transition] = {
    "grant": Transition((), "granted", "granted"),
    "find": Transition((), "running", "ungated"),
    "claim": Transition(("granted", "launching"), "launching", "claimed"),
    "settle": Transition(("launching",), "launching", "launched"),
    "begin": Transition(("granted", "launching"), "running", "started"),
    "notify": Transition(("running",), "notice", "notice"),
    "spare": Transition(("notice",), "running", "spared"),
    "stop": Transition(("granted", "launching", "running", "notice"), "stopping", "stopping"),
    "linger": Transition(
        ("granted", "launching", "running", "notice", "stopping"), "ending", "lingering"
    ),
    "recall": Transition(("granted", "launching"), "recalled", "recalled"),
    "release": Transition(OPEN, "released", "released"),
    "preempt": Transition(("stopping", "ending"), "preempted", "preempted"),
}
