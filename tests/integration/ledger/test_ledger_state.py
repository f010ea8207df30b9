"""The moment as the decision sees it, the same for the daemon and for people who ask."""

from __future__ import annotations

from ledger_samples import POLICY, asked, granted

from dagster_gpufair.ledger import lifecycle, nodes, requests, usage
from dagster_gpufair.ledger.connect import Ledger
from dagster_gpufair.ledger.state import state_of
from dagster_gpufair.policy.loading import parse_policy
from dagster_gpufair.scheduling.model import Account

NLP = Account("nlp")


def test_all_that_is_open_and_nothing_else(ledger: Ledger) -> None:
    policy = parse_policy(POLICY)
    half_life = policy.fair_share.half_life.total_seconds()
    with ledger.writing() as session:
        granted(session, "ended", at=900.0, source="ann")
        lifecycle.release(session, 1, 950.0, "success")
        granted(session, "running", at=960.0, source="ann")
        lifecycle.submit(session, asked("second", at=1000.0, source="ann"))
        lifecycle.submit(session, asked("third", at=1001.0, source="ben"))
        lifecycle.submit(session, asked("first", at=1000.0))
        lifecycle.submit(session, asked("cancelled"))
        lifecycle.cancel(session, ["cancelled"], 1002.0, "canceled")
        lifecycle.refuse(session, asked("refused"), "exceeds_pool", "no", 1002.0)
        requests.block(session, {"third": ("run_limit", "2 of 2")})
        usage.accrue(session, {(NLP, "h100"): 4000}, 0.0, 1000.0, half_life)
        for node in ("h1", "h2", "h3"):
            nodes.cordon(session, "h100", node, "ana", "fan", 1003.0)
        nodes.uncordon(session, "h100", "h2", "ana", 1004.0)
    with ledger.reading() as session:
        state = state_of(session, policy, now=1000.0 + half_life)
        had = usage.used(session, 1000.0, half_life)[NLP, "h100"]
    assert [request.id for request in state.requests] == ["first", "second", "third"]
    assert [lease.id for lease in state.leases] == ["running"]
    assert state.source_starts == {("nlp", "ann"): 960.0}
    assert state.blocked == {"third": ("run_limit", "2 of 2")}
    assert state.used == {(NLP, "h100"): had / 2}
    assert state.cordoned == {"h100": frozenset({"h1", "h3"})}
