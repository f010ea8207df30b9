"""The lives of requests and leases: one table of states and transitions, and a function for each of them.

A transition changes a row only if it is in a state that the transition leaves, so that it happens once
however often and by whomever it is asked for; each appends its event in the same transaction.

Requests:

    queued ──grant──▶ granted ──release──▶ released
      │  ▲               │
      │  └─recall,preempt┘
      ├──cancel──▶ cancelled
      └──refuse──▶ refused

Leases, all but the last three of which hold GPUs:

    granted ──claim──▶ launching ──begin──▶ running ──notify──▶ notice ──stop──▶ stopping
                          (linger, from any of these: its run is over, its processes are not) ▶ ending
    released, recalled (its launch never happened), preempted (its request waits again)
"""

from dagster_gpufair.ledger.lifecycle.of_leases import (
    begin,
    claim,
    find,
    grant,
    keep,
    linger,
    notify,
    preempt,
    recall,
    release,
    renew,
    saved,
    saw_processes,
    settle,
    spare,
    stop,
    tried_to_stop,
    warn,
)
from dagster_gpufair.ledger.lifecycle.of_requests import (
    asked,
    cancel,
    goes_on,
    refuse,
    submit,
    to_go_on,
    waits,
)
from dagster_gpufair.ledger.lifecycle.table import CLOSED, LEASES, OPEN, REQUESTS, Transition

__all__ = [
    "CLOSED",
    "LEASES",
    "OPEN",
    "REQUESTS",
    "Transition",
    "asked",
    "begin",
    "cancel",
    "claim",
    "find",
    "goes_on",
    "grant",
    "keep",
    "linger",
    "notify",
    "preempt",
    "recall",
    "refuse",
    "release",
    "renew",
    "saved",
    "saw_processes",
    "settle",
    "spare",
    "stop",
    "submit",
    "to_go_on",
    "tried_to_stop",
    "waits",
    "warn",
]
