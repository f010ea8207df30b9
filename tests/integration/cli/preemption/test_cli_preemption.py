"""What people say to preemption: yes, no, not now, and not this run; and what they read of it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest
from cli_samples import POLICY, Filling, asked, run_id
from click.testing import Result

from dagster_gpufair.ledger import approvals, leases, lifecycle, pauses, requests
from dagster_gpufair.ledger.events import since

Gpufair = Callable[..., Result]
APPROVAL = f"{POLICY}preemption: {{mode: approval}}\n"


@pytest.fixture
def asking(queue: Filling) -> Filling:
    """A person is asked whether speech's run, 2, may be stopped for nlp's, 3."""
    queue.adopt(APPROVAL)
    queue.run(asked(1, 8, ago=90, team="vision"), asked(2, 8, ago=90, team="speech"), ago=90)
    queue.submit(asked(3, 8, ago=5))
    with queue.ledger.writing() as session:
        request = requests.by_ids(session, [run_id(3)])[run_id(3)]
        lease = leases.of_run(session, run_id(2))[0]
        victims = [{"lease": lease.id, "run": lease.run_id, "rule": "reclaim"}]
        data = {"pool": "h100", "gpus": 8000, "victims": victims}
        approvals.propose(session, request, "h100", data, time.time())
    return queue


def test_what_awaits_approval_is_shown_with_what_to_type(asking: Filling, gpufair: Gpufair) -> None:
    said = gpufair("approvals").stdout
    assert "00000003 (nlp, standard) asks for 8 h100" in said
    assert (
        "would stop 00000002 (speech, standard, 8 GPUs for 1 h 30 min, no checkpoint known)" in said
    )
    assert "`gpufair approve 00000003`" in said
    (shown,) = json.loads(gpufair("approvals", "--json").stdout)["open"]
    assert (shown["run"], shown["stops"][0]["run"]) == (run_id(3), run_id(2))
    assert "1 stop awaits approval" in gpufair("queue").stdout
    said = " ".join(gpufair("explain", "00000002").stdout.split())
    assert "A person is asked now whether it is stopped for 00000003 (`gpufair approvals`)." in said


def test_approved(asking: Filling, gpufair: Gpufair) -> None:
    assert "Approved." in gpufair("approve", "00000003", "--reason", "fine").stdout
    with asking.ledger.reading() as session:
        assert approvals.in_state(session, "approved").keys() == {run_id(3)}
    said = gpufair("approvals").stdout
    assert "Nothing awaits approval." in said
    assert ": fine (1 run for 00000003)" in said
    assert "The question is approved by " in gpufair("history", "00000003").stdout
    again = gpufair("approve", "00000003", code=1)
    assert "Nothing awaits approval for run" in again.stderr


def test_rejected_nobody_is_stopped_for_it(asking: Filling, gpufair: Gpufair) -> None:
    assert "--reason" in gpufair("reject", "00000003", code=2).stderr, "others will ask why"
    assert "Rejected." in gpufair("reject", "00000003", "--reason", "not today").stdout
    assert "insufficient_gpus" in gpufair("queue").stdout


def test_nothing_to_decide(queue: Filling, gpufair: Gpufair) -> None:
    assert gpufair("approvals").stdout == "Nothing awaits approval.\n"
    assert "No run of this Dagster instance" in gpufair("approve", "beef", code=1).stderr


def test_paused_and_resumed(queue: Filling, gpufair: Gpufair) -> None:
    said = gpufair("pause", "borrowing", "--reason", "we move").stdout
    assert "Borrowing is paused. No run starts on borrowed GPUs" in said
    queue.run(asked(1, 8, ago=9), ago=9)
    queue.submit(asked(2, 2, ago=5))
    shown = gpufair("queue").stdout
    assert ": we move. `gpufair resume borrowing` ends that." in shown.replace("\n", " ")
    assert "paused: " in shown
    assert "nothing changed" in gpufair("pause", "borrowing").stdout
    assert "goes on" in gpufair("resume", "borrowing").stdout
    assert "is not paused; nothing changed" in gpufair("resume", "borrowing").stdout
    with queue.ledger.reading() as session:
        assert pauses.current(session) == {}
        assert [each.kind for each in since(session, 0)][-1] == "resumed"
    assert "paused" not in gpufair("queue").stdout


def test_a_run_is_kept_within_what_the_policy_allows(queue: Filling, gpufair: Gpufair) -> None:
    queue.adopt(f"{POLICY}preemption: {{mode: auto, keep_at_most: 3h}}\n")
    queue.run(asked(1, 8, ago=90, team="speech"), asked(2, 8, ago=90), ago=90)
    queue.submit(asked(3, 4, ago=5, team="vision"))
    assert "preempting" in gpufair("queue").stdout
    keep = ("keep", "00000001", "--reason", "demo", "--until")
    assert "is not stopped for others before" in gpufair(*keep, "2h").stdout
    assert "preempting" not in gpufair("queue").stdout
    assert " from " in gpufair("explain", "00000001").stdout
    assert "keeps the run from being stopped until" in gpufair("history", "00000001").stdout
    for wrong, code, says in (
        ("4h", 1, "for 3 h from now at most"),
        ("noon", 2, "is not a time; write a time from now (2h, 45m)"),
        ("2026-06-01T12:00:00", 2, "has no zone"),
        ("2020-06-01T12:00:00Z", 2, "is over already"),
    ):
        assert says in gpufair(*keep, wrong, code=code).stderr.replace("\n", " ")
    assert "not kept any longer" in gpufair("keep", "00000001", "--end").stdout
    assert "preempting" in gpufair("queue").stdout
    assert "holds no GPUs" in gpufair("keep", "00000003", "--end", code=1).stderr


def test_what_is_under_notice_cannot_be_kept_and_is_told(queue: Filling, gpufair: Gpufair) -> None:
    queue.adopt(f"{POLICY}preemption: {{mode: auto}}\n")
    queue.run(asked(1, 8, ago=90, team="speech"), ago=90)
    queue.submit(asked(3, 8, ago=5))
    with queue.ledger.writing() as session:
        (lease,) = leases.open_leases(session)
        lifecycle.notify(session, lease.id, time.time() + 300, run_id(3), "reclaim", time.time())
    refused = gpufair("keep", "00000001", "--until", "1h", "--reason", "demo", code=1).stderr
    assert "is under notice until" in refused
    assert "notice: 00000001 (speech, 8 GPUs) is stopped at " in gpufair("queue").stdout
    said = gpufair("explain", "00000001").stdout.replace("\n", " ")
    assert "for 00000003 (rule reclaim), and goes on later in a new run" in said
    notice = json.loads(gpufair("explain", "00000001", "--json").stdout)["lease"]["notice"]
    assert (notice["for"], notice["rule"], notice["stopping"]) == (run_id(3), "reclaim", False)


def test_what_was_stopped_and_goes_on(queue: Filling, gpufair: Gpufair) -> None:
    """Each of its runs leads to the whole story."""
    queue.run(asked(1, 8, ago=90, team="speech"), ago=90)
    next_run = run_id(4)
    with queue.ledger.writing() as session:
        (lease,) = leases.open_leases(session)
        now = time.time()
        lifecycle.notify(session, lease.id, now, run_id(3), "reclaim", now - 60)
        lifecycle.saved(session, lease.id, now - 1800)
        lifecycle.stop(session, lease.id, "preemption", now)
        lifecycle.preempt(session, lease.id, now, "canceled", now - 1800)
        request = requests.by_ids(session, [run_id(1)])[run_id(1)]
        lifecycle.to_go_on(session, request, next_run, now)
        lifecycle.goes_on(session, run_id(1))
    for beginning in ("00000001", "00000004"):
        said = gpufair("explain", beginning).stdout.replace("\n", " ")
        assert said.startswith(next_run)
        assert "Run 00000001 was stopped at " in said
        assert "(rule reclaim): 4 GPU-hours of work were lost since its last checkpoint at " in said
        assert "Run 00000004 goes on with its work." in said
        told = " ".join(gpufair("history", beginning).stdout.split())
        assert "The run was stopped for another, and its work waits again; 4 GPU-hours" in told
        assert "Another run, 00000004, is made to go on with the work of 00000001" in told
    assert "00000004" in gpufair("queue").stdout
    (stopped,) = json.loads(gpufair("explain", "00000004", "--json").stdout)["stopped"]
    assert (stopped["run"], stopped["goes_on_in"], stopped["lost_gpu_hours"]) == (
        *(run_id(1), next_run),
        pytest.approx(4.0, abs=0.01),
    )
