"""What a plan decides is written all at once: grants, promises, notices, withdrawals, renewals, questions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import pytest

from dagster_gpufair.engine.book import Book
from dagster_gpufair.engine.carry_out import carry_out, end_waiting
from dagster_gpufair.engine.writer_turn import Overtaken
from dagster_gpufair.ledger import approvals, events, leases, lifecycle, nodes, promises, requests
from dagster_gpufair.ledger.connect import Ledger
from dagster_gpufair.ledger.leases import PREEMPTION
from dagster_gpufair.ledger.replay import past_passes
from dagster_gpufair.ledger.requests import RequestRecord
from dagster_gpufair.ledger.state import state_of
from dagster_gpufair.policy.loading import parse_policy
from dagster_gpufair.policy.models import Policy
from dagster_gpufair.scheduling.model import Plan
from dagster_gpufair.scheduling.plan import plan

NOW = 1_000_000.0
POLICY = """
pools: {a100: {nodes: {n1: 8}}}
teams: {red: {quota: {a100: 4}}, blue: {quota: {a100: 4}}}
preemption: {mode: %s, grace: 5m, min_runtime: 10m}
borrowing: {max_duration: 2h}
"""


class Passes:
    """Passes over a ledger, by one daemon that keeps its book."""

    def __init__(self, ledger: Ledger, mode: str = "auto"):
        self.ledger = ledger
        self.policy: Policy = parse_policy(POLICY % mode)
        with ledger.reading() as session:
            self.book = Book.opened(session)

    def submit(self, id_: str, team: str, gpus: int, at: float) -> None:
        request = RequestRecord(
            id_, id_, team, "standard", ("a100",), gpus * 1000, at, job_name="train"
        )
        with self.ledger.writing() as session:
            lifecycle.submit(session, request)
        self.book.enter(request)

    def pass_(self, at: float, blocked: Mapping[str, tuple[str, str]] | None = None) -> Plan:
        """One pass, whose grants begin at once."""
        blocked, approved = blocked or {}, self.approved()
        state = self.book.state(self.policy, at, used={}, cordoned={}, blocked=blocked)
        decided = plan(self.policy, state, at)
        with self.ledger.writing() as session:
            written = carry_out(
                session,
                self.book,
                decided,
                decided.starts,
                blocked=blocked,
                used={},
                cordoned={},
                policy_version=1,
                paused=(),
                approved=approved,
                grace=lambda _: 300.0,
                now=at,
            )
        written.enter(self.book)
        with self.ledger.writing() as session:
            for lease in written.granted:
                lifecycle.begin(session, lease.id, at, at)
                self.book.hold(leases.by_id(session, lease.id))
        self.assert_memory_is_the_ledger(at)
        return decided

    def end(self, id_: str, at: float) -> None:
        with self.ledger.writing() as session:
            lifecycle.release(session, self.book.leases[id_].id, at, "success")
        self.book.released(id_)

    def assert_memory_is_the_ledger(self, at: float) -> None:
        self.approved()
        in_memory = self.book.state(self.policy, at, used={}, cordoned={}, blocked={})
        with self.ledger.reading() as session:
            in_ledger = state_of(session, self.policy, at)
        assert list(in_memory.requests) == list(in_ledger.requests)
        assert sorted(in_memory.leases, key=str) == sorted(in_ledger.leases, key=str)

    def approved(self) -> dict[str, Any]:
        """What a person has agreed to, as a daemon reads it at the beginning of a pass."""
        with self.ledger.reading() as session:
            self.book.reject(approvals.in_state(session, "rejected"))
            return {id_: each.data for id_, each in approvals.in_state(session, "approved").items()}

    def promised(self) -> dict[str, Any]:
        with self.ledger.reading() as session:
            return dict(promises.current(session))

    def kinds(self) -> list[str]:
        with self.ledger.reading() as session:
            return [event.kind for event in events.since(session, 0)]


def test_a_promise_and_its_notices_are_written_together_and_end_when_the_asker_starts(
    ledger: Ledger,
) -> None:
    passes = Passes(ledger)
    passes.submit("lent", "blue", 8, NOW - 3600)
    passes.pass_(NOW - 3600)
    passes.submit("asks", "red", 4, NOW)

    passes.pass_(NOW)

    assert passes.promised().keys() == {"asks"}
    lease = passes.book.leases["lent"]
    assert (lease.state, lease.notice_until, lease.notice_for, lease.notice_rule) == (
        *("notice", NOW + 300, "asks"),
        "reclaim",
    )
    assert passes.kinds()[-3:] == ["pass", "promised", "notice"]

    passes.pass_(NOW + 1)
    assert passes.kinds()[-1] == "notice", "to plan again at once changes nothing"

    passes.end("lent", NOW + 200)
    passes.pass_(NOW + 201)
    assert passes.book.leases.keys() == {"asks"}
    assert passes.promised() == {}


def test_who_was_given_notice_for_one_that_left_is_spared(ledger: Ledger) -> None:
    passes = Passes(ledger)
    passes.submit("lent", "blue", 8, NOW - 3600)
    passes.pass_(NOW - 3600)
    passes.submit("asks", "red", 4, NOW)
    passes.pass_(NOW)

    asks = passes.book.queued["asks"]
    with ledger.writing() as session:
        (spared,) = end_waiting(session, passes.book, asks, "canceled", NOW + 10)
    passes.book.leave("asks")
    passes.book.hold(spared)
    passes.pass_(NOW + 11)

    lease = passes.book.leases["lent"]
    assert (lease.state, lease.notice_until, lease.notice_for) == ("running", None, None)
    assert passes.promised() == {}
    assert "spared" in passes.kinds()


def test_a_person_is_asked_once_and_no_more_when_it_is_not_needed(ledger: Ledger) -> None:
    passes = Passes(ledger, mode="approval")
    passes.submit("lent", "blue", 8, NOW - 3600)
    passes.pass_(NOW - 3600)
    passes.submit("asks", "red", 4, NOW)

    for seconds in range(3):
        passes.pass_(NOW + seconds)

    with ledger.reading() as session:
        proposed = approvals.in_state(session, "proposed")
    assert proposed["asks"].data["victims"] == [
        {"lease": passes.book.leases["lent"].id, "run": "lent", "rule": "reclaim"}
    ]
    assert passes.kinds().count("proposed") == 1
    assert passes.book.leases["lent"].state == "running"

    passes.end("lent", NOW + 10)
    passes.pass_(NOW + 11)
    with ledger.reading() as session:
        assert approvals.in_state(session, "proposed") == {}
    assert passes.book.leases.keys() == {"asks"}


def decide(passes: Passes, as_: Literal["approved", "rejected"]) -> bool:
    """What a person says to the question for ``asks``."""
    with passes.ledger.writing() as session:
        asks = passes.book.queued["asks"]
        return approvals.decide(session, asks, as_, "ann", "the demo is tomorrow", NOW + 5)


def test_what_a_person_approves_is_done_by_the_next_pass(ledger: Ledger) -> None:
    passes = Passes(ledger, mode="approval")
    passes.submit("lent", "blue", 8, NOW - 3600)
    passes.pass_(NOW - 3600)
    passes.submit("asks", "red", 4, NOW)
    passes.pass_(NOW)
    assert decide(passes, "approved")

    passes.pass_(NOW + 6)
    assert passes.book.leases["lent"].state == "notice"
    assert passes.promised().keys() == {"asks"}
    passes.pass_(NOW + 7)
    assert passes.book.leases["lent"].notice_until == NOW + 306, "it is not begun anew"
    assert passes.kinds().count("proposed") == 1
    assert not decide(passes, "rejected"), "it is done"


def test_what_a_person_rejects_is_not_asked_again(ledger: Ledger) -> None:
    passes = Passes(ledger, mode="approval")
    passes.submit("lent", "blue", 8, NOW - 3600)
    passes.pass_(NOW - 3600)
    passes.submit("asks", "red", 4, NOW)
    passes.pass_(NOW)
    assert decide(passes, "rejected")

    decided = [passes.pass_(NOW + seconds) for seconds in (6, 7, 3600)]
    assert [group.reason for one in decided for group in one.waiting] == ["insufficient_gpus"] * 3
    assert passes.kinds().count("proposed") == 1
    assert passes.book.leases["lent"].state == "running"


def test_what_was_rejected_is_asked_again_once_the_run_has_started_and_was_stopped(
    ledger: Ledger,
) -> None:
    passes = Passes(ledger, mode="approval")
    passes.submit("lent", "blue", 8, NOW - 3600)
    passes.pass_(NOW - 3600)
    passes.submit("asks", "red", 4, NOW)
    passes.pass_(NOW)
    assert decide(passes, "rejected")
    passes.end("lent", NOW + 10)
    passes.pass_(NOW + 11)

    lease = passes.book.leases["asks"]
    with ledger.writing() as session:
        lifecycle.stop(session, lease.id, PREEMPTION, NOW + 20)
        lifecycle.preempt(session, lease.id, NOW + 30, "canceled", NOW + 11)
        (again,) = requests.by_ids(session, ["asks"]).values()
    passes.book.released("asks")
    passes.book.enter(again)

    passes.assert_memory_is_the_ledger(NOW + 31)
    (waits,) = passes.book.in_order()
    assert not waits.rejected


def test_what_was_approved_is_void_when_it_is_not_wanted_any_more(ledger: Ledger) -> None:
    passes = Passes(ledger, mode="approval")
    passes.submit("lent", "blue", 8, NOW - 3600)
    passes.pass_(NOW - 3600)
    passes.submit("asks", "red", 4, NOW)
    passes.pass_(NOW)
    assert decide(passes, "approved")
    passes.end("lent", NOW + 6)
    passes.pass_(NOW + 7)
    assert passes.book.leases.keys() == {"asks"}
    with ledger.reading() as session:
        assert approvals.newest(session, 5)[0].state == "withdrawn"


def test_borrowing_time_begins_anew_while_nobody_waits(ledger: Ledger) -> None:
    passes = Passes(ledger)
    passes.submit("lent", "blue", 8, NOW - 7200)
    passes.pass_(NOW - 7200)

    passes.pass_(NOW + 1)

    assert passes.book.leases["lent"].term_from == NOW + 1
    assert passes.kinds()[-1] == "renewed"


def test_every_one_of_these_passes_can_be_made_again_from_the_record(ledger: Ledger) -> None:
    passes = Passes(ledger)
    decided = {}
    passes.submit("lent", "blue", 8, NOW - 7300)
    decided[NOW - 7300] = passes.pass_(NOW - 7300)
    decided[NOW - 10] = passes.pass_(NOW - 10)
    passes.submit("asks", "red", 4, NOW)
    decided[NOW] = passes.pass_(NOW)
    passes.end("lent", NOW + 200)
    decided[NOW + 201] = passes.pass_(NOW + 201)

    with ledger.reading() as session:
        record = events.since(session, 0)
    past = list(past_passes(record))
    assert [each.at for each in past] == list(decided)
    for each in past:
        again = plan(passes.policy, each.state(passes.policy), each.at)
        for field in ("starts", "preemptions", "withdrawn", "spared", "renewed"):
            assert getattr(again, field) == getattr(decided[each.at], field)


def test_a_node_that_was_taken_out_since_the_pass_began_makes_it_void(ledger: Ledger) -> None:
    passes = Passes(ledger)
    passes.submit("asks", "red", 4, NOW)
    with ledger.writing() as session:
        nodes.cordon(session, "a100", "n1", "ana", "fan", NOW)

    with pytest.raises(Overtaken):
        passes.pass_(NOW)

    with ledger.reading() as session:
        assert leases.open_leases(session) == []
    assert passes.kinds() == ["submitted", "cordoned"]
