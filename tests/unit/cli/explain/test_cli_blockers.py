"""Who is in the way, for programs: also where others are to leave for a run."""

from __future__ import annotations

from dagster_gpufair.cli.explain.blockers import blockers_json, in_the_way
from dagster_gpufair.cli.moment.current import Daemon, Moment
from dagster_gpufair.ledger.policies import PolicyVersion
from dagster_gpufair.policy.loading import parse_policy
from dagster_gpufair.scheduling.model import Lease, Request, State

NOW = 1_800_000_000.0
HOUR = 3600.0
POLICY = """\
pools: {t4: {gpus: 4}}
teams: {red: {quota: {t4: 4}}, blue: {}}
preemption: {mode: auto}
"""


def moment(state: State, text: str = POLICY) -> Moment:
    policy = parse_policy(text)
    return Moment(
        now=NOW,
        version=PolicyVersion(1, text, "digest", "gpufair.yaml", NOW, "somebody"),
        policy=policy,
        file_trouble=None,
        daemon=Daemon(NOW, None, overdue=False),
        state=state,
        leases=[],
        cordons=[],
        usual_ends={},
    )


def test_those_that_leave_for_it() -> None:
    leaving = Lease("b", "blue", "standard", "t4", 4000, NOW - HOUR)
    asks = Request("r", "red", "standard", ("t4",), 4000, NOW - 60)
    now = moment(State(requests=[asks], leases=[leaving]))
    waiter = now.waiter("r")
    assert waiter is not None
    assert waiter.reason == "preempting"
    assert blockers_json(now, waiter) == [
        {
            "what": "lease",
            "run": "b",
            "team": "blue",
            "project": None,
            "tier": "standard",
            "gpus": 4,
            "since": "2027-01-15T07:00:00.000Z",
            "until": None,
        }
    ]
    assert list(in_the_way(now, waiter)) == [], "the sentence names them"


def test_nobody_is_in_its_own_way() -> None:
    leases = [Lease("b", "blue", "standard", "t4", 3000, NOW - HOUR, max_duration=2 * HOUR)]
    requests = [
        Request("first", "red", "standard", ("t4",), 4000, NOW - 60),
        Request("second", "red", "standard", ("t4",), 1000, NOW - 50),
    ]
    text = POLICY.replace("auto", "off")
    now = moment(State(requests=requests, leases=leases), text)
    blockers = {id_: now.waiter(id_).blockers for id_ in ("first", "second")}  # type: ignore[union-attr]
    assert blockers == {"first": [], "second": ["first"]}
