"""What becomes of a lease follows from what is to be seen of its holder, not from what was last done."""

from __future__ import annotations

import pytest
from lease_samples import lease

from dagster_gpufair.engine.port import Sight
from dagster_gpufair.engine.reconcile import LINGERS_AFTER, Verdict, judge
from dagster_gpufair.ledger.leases import LeaseRecord, LeaseState

OPEN: tuple[LeaseState, ...] = (
    "granted",
    "launching",
    "running",
    "notice",
    "stopping",
    "ending",
)
NOW = 1000.0


def verdict(
    of: LeaseRecord, sight: Sight, now: float = NOW, *, is_busy: bool = False
) -> Verdict | None:
    return judge(of, sight, now, is_busy=is_busy, start_timeout=180.0)


def what(of: LeaseRecord, sight: Sight, now: float = NOW, *, is_busy: bool = False) -> str | None:
    found = verdict(of, sight, now, is_busy=is_busy)
    return None if found is None else found.what


@pytest.mark.parametrize("state", [state for state in OPEN if state != "ending"])
def test_whatever_it_was_in_a_lease_ends_when_its_holder_did(state: LeaseState) -> None:
    held = lease(state=state, started_at=900.0)

    assert verdict(held, Sight("over", 950.0, "success")) == Verdict("release", 950.0, "success")
    assert verdict(held, Sight("over", 950.0, "failure", alive=False)) == (
        Verdict("release", 950.0, "failure")
    )


def test_a_lease_whose_processes_outlived_the_run_ends_when_they_are_gone() -> None:
    held = lease(state="ending", started_at=900.0, over_at=950.0)

    assert verdict(held, Sight("over", 950.0, "failure", alive=False)) == (
        Verdict("release", NOW, "failure")
    )


@pytest.mark.parametrize(("ended", "counts"), [(None, NOW), (100.0, 900.0), (2000.0, NOW)])
def test_an_end_lies_between_the_grant_and_now(ended: float | None, counts: float) -> None:
    found = verdict(lease(started_at=900.0), Sight("over", ended, "deleted"))

    assert found is not None
    assert found.at == counts


@pytest.mark.parametrize("state", OPEN)
def test_gpus_are_held_while_processes_are_there(state: LeaseState) -> None:
    held = lease(state=state)
    there = Sight("over", NOW - 1, "failure", alive=True)

    assert what(held, there) is None, "a process ends a moment after its run"
    assert what(held, there, NOW + LINGERS_AFTER) == (None if state == "ending" else "linger")


def test_what_begins_to_run_has_begun_then() -> None:
    for state in ("granted", "launching"):
        held = lease(state=state, started_at=900.0, began_at=None)
        assert verdict(held, Sight("running", 940.0)) == Verdict("begin", 940.0)
    assert what(lease(), Sight("running", 940.0)) is None


def test_what_is_granted_and_launched_by_nobody_is_launched() -> None:
    granted = lease(state="granted", began_at=None)

    assert what(granted, Sight("queued")) == "launch"
    assert what(granted, Sight("starting")) == "launch", "what marked it died before it took it on"
    assert what(granted, Sight("queued"), is_busy=True) is None
    assert what(granted, Sight("starting"), is_busy=True) is None


def test_what_was_taken_on_and_waits_again_was_not_launched() -> None:
    taken_on = lease(state="launching", claimed_at=990.0, began_at=None)

    assert what(taken_on, Sight("queued")) == "recall"
    assert what(taken_on, Sight("queued"), is_busy=True) is None


def test_a_launch_without_an_answer_keeps_its_gpus_until_no_worker_can_come() -> None:
    unanswered = lease(state="launching", claimed_at=NOW - 179, began_at=None)

    assert what(unanswered, Sight("starting")) is None
    assert what(unanswered, Sight("starting"), NOW + 1) == "never_came"
    assert what(unanswered, Sight("starting"), NOW + 1, is_busy=True) == "never_came", "it hangs"
    assert what(unanswered, Sight("starting", alive=True), NOW + 1000) is None, "it is there"


def test_an_answer_is_no_worker() -> None:
    """The start timeout counts from it, unless whoever launched it knows that its worker comes."""
    answered = lease(state="launching", claimed_at=0.0, launched_at=NOW - 179, began_at=None)

    assert what(answered, Sight("starting")) is None
    assert what(answered, Sight("starting"), NOW + 1) == "never_came"
    assert what(answered, Sight("starting", alive=True), 1e6) is None, "an image is being pulled"


@pytest.mark.parametrize("state", ["running", "notice", "stopping", "ending"])
def test_what_has_begun_and_is_queued_again_has_to_be_over_first(state: LeaseState) -> None:
    """Nobody launches it, and its worker may be there."""
    assert what(lease(state=state), Sight("queued")) == "give_up"


@pytest.mark.parametrize("doing", ["starting", "running"])
def test_what_has_no_process_left_is_given_up(doing: str) -> None:
    held = lease(state="launching" if doing == "starting" else "running", launched_at=NOW - 1)

    assert what(held, Sight(doing, 1.0, alive=False)) == "give_up"  # type: ignore[arg-type]
    assert what(held, Sight(doing, 1.0, alive=None)) in (None, "begin")  # type: ignore[arg-type]


def test_a_stop_frees_nothing() -> None:
    stopping = lease(state="stopping", stop_asked_at=0.0, stop_tries=9)

    for doing in ("starting", "running"):
        assert what(stopping, Sight(doing, 1.0), 1e9) is None  # type: ignore[arg-type]
