"""Requests from their submission on: recorded once, found by odd names, blocked, cancelled, refused."""

from __future__ import annotations

import pytest
from ledger_samples import asked, granted

from dagster_gpufair.ledger import events, lifecycle, requests
from dagster_gpufair.ledger.connect import Ledger
from dagster_gpufair.ledger.requests import RequestRecord
from dagster_gpufair.scheduling.model import Request

ODD_TEXTS = [
    "launch 🚀 день 发射",
    "it's; DROP TABLE gpufair_requests --",
    '100% _sure_ \\ "quoted" {json: [1]}',
    " \n\ttabs and lines\r\n ",
    "x" * 10_000,
]


def test_a_request_comes_back_as_it_went_in(ledger: Ledger) -> None:
    request = Request(
        id="run-1",
        team="nlp",
        tier="milestone",
        pools=("h100", "a100"),
        gpus=12_500,
        submitted=1234567890.123456,
        project="pretrain",
        kind="training",
        min_gpus=4000,
        gpus_per_node=4000,
        max_duration=5400.5,
        source="backfill-7",
        preempted=2,
        cpus=3.5,
        memory_gib=64.25,
    )
    new = RequestRecord.of(request, job_name="train", location="nlp", policy_version=3)
    with ledger.writing() as session:
        assert lifecycle.submit(session, new)
    with ledger.reading() as session:
        found = requests.by_ids(session, ["run-1", "run-2"])
    assert found == {"run-1": new}
    assert found["run-1"].to_request() == request
    assert (new.job_name, new.location, new.policy_version) == ("train", "nlp", 3)


def test_a_run_that_is_submitted_twice_is_one_request(ledger: Ledger) -> None:
    with ledger.writing() as session:
        assert lifecycle.submit(session, asked(gpus=8))
    with ledger.writing() as session:
        assert not lifecycle.submit(session, asked(gpus=2))
    with ledger.reading() as session:
        assert [request.gpus for request in requests.open_requests(session)] == [8000]
        (submitted,) = events.of_run(session, "run-1")
    assert (submitted.kind, submitted.team, submitted.pool) == ("submitted", "nlp", "h100")
    assert submitted.data["gpus"] == 8000
    assert submitted.data["request"] == "run-1"


def test_a_bulk_of_requests_in_the_order_of_submission(ledger: Ledger) -> None:
    with ledger.writing() as session:
        for number in reversed(range(600)):
            lifecycle.submit(session, asked(f"run-{number:04}", at=1000.0 + number % 2))
    ids = [f"run-{number:04}" for number in range(600)]
    with ledger.reading() as session:
        assert len(requests.by_ids(session, ids)) == 600
        assert [request.id for request in requests.waiting(session)] == ids[::2] + ids[1::2]
    with ledger.writing() as session:
        assert sorted(lifecycle.cancel(session, ids, 1010.0, "canceled")) == ids
    with ledger.reading() as session:
        assert requests.open_requests(session) == []


@pytest.mark.parametrize("odd", ODD_TEXTS)
def test_texts_of_any_kind(ledger: Ledger, odd: str) -> None:
    request = asked(odd[:200], job_name=odd[:200], location=odd, kind=odd, pools=(odd, "h100"))
    with ledger.writing() as session:
        lifecycle.submit(session, request)
        requests.block(session, {request.id: ("environment", odd)})
    with ledger.reading() as session:
        (found,) = requests.find(session, request.id)
    assert found.blocked_message == odd
    assert (found.id, found.job_name, found.location) == (odd[:200], odd[:200], odd)
    assert (found.kind, found.pools) == (odd, (odd, "h100"))


@pytest.mark.parametrize("odd", ["nul \x00 inside", "half a \ud83d pair", "\x00"])
def test_what_no_database_can_hold_is_replaced(ledger: Ledger, odd: str) -> None:
    kept = odd.replace("\x00", "\N{REPLACEMENT CHARACTER}").replace("\ud83d", "\ufffd")
    request = asked(odd, job_name=odd, source=odd, pools=(odd,))
    with ledger.writing() as session:
        assert lifecycle.submit(session, request)
        assert not lifecycle.submit(session, request)
        assert requests.block(session, {kept: ("environment", odd)}) == 1
        assert requests.block(session, {kept: ("environment", odd)}) == 0
    with ledger.reading() as session:
        (found,) = requests.by_ids(session, [odd]).values()
        assert requests.find(session, odd) == [found]
    assert (found.id, found.job_name, found.source, found.pools) == (kept, kept, kept, (kept,))
    assert found.blocked_message == kept


def test_names_beyond_all_measure_stay_apart(ledger: Ledger) -> None:
    # Incompressible, and of four bytes each: no index of Postgres holds them whole.
    long = "".join(chr(0x1F300 + number * 7919 % 256) for number in range(5000))
    one, other = (
        asked(f"{long}1", team=long, source=long),
        asked(f"{long}2", team=long, source=long),
    )
    with ledger.writing() as session:
        assert lifecycle.refuse(session, one, "unknown_team", f"no team {long}", 1000.0)
        assert lifecycle.submit(session, other)
        assert not lifecycle.submit(session, other)
        assert len(requests.by_ids(session, [one.id, other.id])) == 2
        assert events.of_run(session, other.run_id)[0].data["source"] == long


def test_ids_are_found_by_how_they_begin_and_signs_mean_themselves(ledger: Ledger) -> None:
    ids = ["abc-1", "abc-2", "ABC-3", "a%c", "a_c-4", "a\\c", "ab"]
    with ledger.writing() as session:
        for number, id_ in enumerate(ids):
            lifecycle.submit(session, asked(id_, at=1000.0 + number))

    def found(prefix: str, limit: int = 20) -> list[str]:
        with ledger.reading() as session:
            return [request.id for request in requests.find(session, prefix, limit)]

    assert found("abc") == ["abc-2", "abc-1"]
    assert found("abc-1") == ["abc-1"]
    assert found("ABC") == ["ABC-3"]
    assert found("a%") == ["a%c"]
    assert found("a_c") == ["a_c-4"]
    assert found("a\\") == ["a\\c"]
    assert found("%") == []
    assert found("") == ids[::-1]
    assert found("", limit=2) == ids[:-3:-1]


def test_a_refused_request_never_waits(ledger: Ledger) -> None:
    with ledger.writing() as session:
        assert lifecycle.refuse(session, asked(gpus=64), "exceeds_pool", "64 of 16", 1001.0)
        assert not lifecycle.refuse(session, asked(gpus=64), "exceeds_pool", "64 of 16", 1002.0)
        assert not lifecycle.submit(session, asked(gpus=64))
        assert requests.waiting(session) == []
        refused = requests.by_ids(session, ["run-1"])["run-1"]
        (told,) = events.of_run(session, "run-1")
    assert (refused.state, refused.refusal_code) == ("refused", "exceeds_pool")
    assert (refused.refusal_message, refused.finished_at) == ("64 of 16", 1001.0)
    assert (told.kind, told.at, told.data["code"]) == ("refused", 1001.0, "exceeds_pool")


def test_a_waiting_request_can_be_refused_by_a_new_policy_but_a_running_one_cannot(
    ledger: Ledger,
) -> None:
    with ledger.writing() as session:
        lifecycle.submit(session, asked("waiting"))
        granted(session, "running")
        assert lifecycle.refuse(session, asked("waiting"), "exceeds_pool", "no", 1001.0)
        assert not lifecycle.refuse(session, asked("running"), "exceeds_pool", "no", 1001.0)
        found = requests.by_ids(session, ["waiting", "running"])
        states = {id_: request.state for id_, request in found.items()}
    assert states == {"waiting": "refused", "running": "granted"}


def test_only_what_waits_can_be_cancelled(ledger: Ledger) -> None:
    with ledger.writing() as session:
        lifecycle.submit(session, asked("waiting"))
        granted(session, "running")
        ids = ["waiting", "running", "unknown"]
        assert lifecycle.cancel(session, ids, 1005.0, "canceled") == ["waiting"]
        assert lifecycle.cancel(session, ids, 1006.0, "canceled") == []
        found = requests.by_ids(session, ids)
        assert [event.kind for event in events.of_run(session, "waiting")] == [
            "submitted",
            "cancelled",
        ]
    assert (found["waiting"].state, found["waiting"].finished_at) == ("cancelled", 1005.0)
    assert found["running"].state == "granted"


def test_blocking_writes_only_what_is_new(ledger: Ledger) -> None:
    unreachable = ("environment", "code location nlp is unreachable")
    limit = ("run_limit", "max_concurrent_runs: 2 of 2")
    with ledger.writing() as session:
        for id_ in ("a", "b", "c", "running"):
            lifecycle.submit(session, asked(id_))
        granted(session, "running")
        blocked = {"a": unreachable, "b": unreachable, "c": limit}
        assert requests.block(session, {**blocked, "running": limit, "unknown": limit}) == 3
        assert requests.block(session, blocked) == 0
        assert requests.block(session, {**blocked, "b": limit}) == 1
        said = {
            request.id: (request.blocked_reason, request.blocked_message)
            for request in requests.open_requests(session)
        }
        assert said == {"a": unreachable, "b": limit, "c": limit, "running": (None, None)}
        assert requests.unblock(session, ["a", "b", "running", "unknown"]) == 2
        assert requests.unblock(session, ["a", "b"]) == 0
        left = [request.id for request in requests.waiting(session) if request.blocked_reason]
    assert left == ["c"]


def test_a_grant_takes_a_block_away(ledger: Ledger) -> None:
    with ledger.writing() as session:
        lifecycle.submit(session, asked())
        requests.block(session, {"run-1": ("run_limit", "2 of 2")})
        granted(session)
        assert requests.by_ids(session, ["run-1"])["run-1"].blocked_reason is None


def test_what_the_page_was_made_to_say_is_kept(ledger: Ledger) -> None:
    with ledger.writing() as session:
        lifecycle.submit(session, asked())
        requests.told(session, "run-1", "waiting", "insufficient_gpus")
        told = requests.by_ids(session, ["run-1"])["run-1"]
        assert (told.told_state, told.told_reason) == ("waiting", "insufficient_gpus")
        requests.told(session, "run-1", "running", None)
        told = requests.by_ids(session, ["run-1"])["run-1"]
    assert (told.told_state, told.told_reason) == ("running", None)
