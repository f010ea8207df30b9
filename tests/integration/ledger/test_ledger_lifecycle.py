"""One table says which state follows which, and nothing happens that it does not say."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

import pytest
from ledger_samples import asked, granted
from sqlalchemy.orm import Session

from dagster_gpufair.ledger import events, leases, lifecycle, requests
from dagster_gpufair.ledger.connect import Ledger
from dagster_gpufair.ledger.events import EventKind
from dagster_gpufair.ledger.leases import LeaseState
from dagster_gpufair.ledger.lifecycle import CLOSED, LEASES, OPEN, REQUESTS
from dagster_gpufair.ledger.requests import RequestState

MAKES: dict[str, Callable[[Session, int], object]] = {
    "claim": lambda session, id_: lifecycle.claim(session, id_, 1, "here", 1010.0),
    "settle": lambda session, id_: lifecycle.settle(session, id_, 1010.0),
    "begin": lambda session, id_: lifecycle.begin(session, id_, 1009.0, 1010.0),
    "notify": lambda session, id_: lifecycle.notify(
        session, id_, 1300.0, "other", "reclaim", 1010.0
    ),
    "spare": lambda session, id_: lifecycle.spare(session, id_, 1010.0),
    "stop": lambda session, id_: lifecycle.stop(session, id_, "bound", 1010.0),
    "linger": lambda session, id_: lifecycle.linger(session, id_, 1009.0, "it goes on", 1010.0),
    "recall": lambda session, id_: lifecycle.recall(session, id_, 1010.0, "it never began"),
    "release": lambda session, id_: lifecycle.release(session, id_, 1010.0, "success"),
    "preempt": lambda session, id_: lifecycle.preempt(session, id_, 1010.0, "for another", 1005.0),
}
"""Every transition of a lease that is there."""
WAYS: dict[str, tuple[str, ...]] = {
    "granted": (),
    "launching": ("claim",),
    "running": ("begin",),
    "notice": ("begin", "notify"),
    "stopping": ("begin", "stop"),
    "ending": ("begin", "linger"),
    "released": ("release",),
    "recalled": ("recall",),
    "preempted": ("begin", "stop", "preempt"),
}
"""How a lease comes into each state."""


def test_the_table_knows_every_state_and_every_kind_of_event() -> None:
    assert set(OPEN) | set(CLOSED) == set(get_args(LeaseState)) == set(WAYS)
    assert {each.enters for each in REQUESTS.values()} == set(get_args(RequestState))
    told = {each.event for each in (*REQUESTS.values(), *LEASES.values())}
    assert told <= set(get_args(EventKind))
    assert set(MAKES) == set(LEASES) - {"grant", "find"}


def test_what_is_closed_stays_closed() -> None:
    assert not any(set(CLOSED) & set(each.leaves) for each in LEASES.values())


@pytest.mark.parametrize("state", WAYS)
def test_a_transition_leaves_the_states_that_the_table_says_and_no_other(
    ledger: Ledger, state: str
) -> None:
    for transition, make in MAKES.items():
        with ledger.writing() as session:
            lease_id = granted(session, transition)
            for step in WAYS[state]:
                assert MAKES[step](session, lease_id)
            before = leases.by_id(session, lease_id)
            assert before.state == state
            newest = events.newest(session)

            made = make(session, lease_id)

            after = leases.by_id(session, lease_id)
            told = events.since(session, newest)
        fits = state in LEASES[transition].leaves
        # Of the same epoch, a launch that has been taken on is taken on by nobody else.
        fits = fits and not (transition == "claim" and state == "launching")
        assert bool(made) == fits
        assert after.state == (LEASES[transition].enters if fits else state)
        assert [event.kind for event in told] == ([LEASES[transition].event] if fits else [])
        if not fits:
            assert after == before


@pytest.mark.parametrize(
    ("transition", "state"),
    [("release", "released"), ("recall", "queued"), ("preempt", "queued")],
)
def test_what_the_end_of_a_lease_is_to_its_request(
    ledger: Ledger, transition: str, state: str
) -> None:
    with ledger.writing() as session:
        lease_id = granted(session, at=1000.0)
        if transition == "preempt":
            lifecycle.begin(session, lease_id, 1001.0, 1001.0)
            lifecycle.stop(session, lease_id, "preemption", 1002.0)
        assert MAKES[transition](session, lease_id)
        request = requests.by_ids(session, ["run-1"])["run-1"]
        again = lifecycle.submit(session, asked())
    assert request.state == state
    assert not again, "it stays the same request"
    assert request.preempted == (1 if transition == "preempt" else 0)
    assert request.submitted_at == (1010.0 if transition == "preempt" else 1000.0)
