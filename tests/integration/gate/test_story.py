"""A random story of users, runs, operators and trouble: what the daemon keeps in memory is what the ledger
has, and every decision can be made again from the record."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from gate_stage import Stage

from dagster_gpufair.engine import engine as engine_module
from dagster_gpufair.ledger import events, nodes, policies
from dagster_gpufair.ledger.replay import past_passes
from dagster_gpufair.ledger.state import state_of
from dagster_gpufair.policy.loading import parse_policy
from dagster_gpufair.scheduling.model import Lease, Plan, State
from dagster_gpufair.scheduling.plan import plan

OpenStage = Callable[..., Stage]
POLICIES = [
    """
    pools: {a100: {nodes: {n1: 8, n2: 8}}, t4: {gpus: 4}}
    teams:
      red: {quota: {a100: 8, t4: 2}, lend_limit: {a100: 4}, projects: {deep: {quota: {a100: 2}}}}
      blue: {quota: {a100: 4}}
      green: {borrow_limit: {a100: 6}}
    """,
    """
    pools: {hopper: {nodes: {n1: 8}}, a100: {nodes: {n2: 8}}, t4: {gpus: 6}}
    teams:
      red: {quota: {a100: 4, hopper: 4}}
      blue: {quota: {a100: 4}}
      green: {}
    fair_share: {half_life: 1h}
    """,
]
STEPS = 60


class Story:
    """What may happen between two passes, by chance."""

    def __init__(self, stage: Stage, seed: int):
        self.stage = stage
        self.chance = random.Random(seed)
        self.now = time.time()
        self.policy = 0

    def go_on(self) -> None:
        """Something happens, and some time goes by."""
        for _ in range(self.chance.randint(0, 3)):
            self.chance.choice(
                [self.submit] * 6
                + [self.start] * 4
                + [self.end] * 4
                + [self.cancel, self.cordon, self.uncordon, self.trouble, self.mend, self.rule]
            )()
        self.now += self.chance.choice([1.0, 1.0, 5.0, 20.0, 600.0, 3600.0])

    def submit(self) -> None:
        asks = self.chance.choice(
            [
                {"pool": "a100", "gpus": self.chance.choice([1, 2, 4, 8])},
                {"pool": "a100,t4", "gpus": "2-4"},
                {"pool": "t4", "gpus": self.chance.choice(["0.5", "1", "2"])},
            ]
        )
        team = self.chance.choice(["red", "blue", "green"])
        more: dict[str, Any] = self.chance.choice(
            [{}, {"max_duration": "2h"}, {"user": self.chance.choice(["ann", "ben"])}]
        )
        job = self.chance.choice(["train", "train", "broken", "gone"])
        location = "gone" if job == "gone" else "jobs"
        self.stage.submit(job, location, team=team, **asks, **more)

    def _of(self, *states: str) -> str | None:
        found = sorted(id_ for id_, is_ in self.stage.unfinished().items() if is_ in states)
        return self.chance.choice(found) if found else None

    def start(self) -> None:
        if run_id := self._of("STARTING"):
            self.stage.start(run_id)

    def end(self) -> None:
        if run_id := self._of("STARTED"):
            self.stage.succeed(run_id)

    def cancel(self) -> None:
        if run_id := self._of("QUEUED", "STARTED"):
            self.stage.cancel(run_id)

    def cordon(self) -> None:
        with self.stage.ledger.writing() as session:
            nodes.cordon(session, "a100", "n2", "ana", "fan", self.now)

    def uncordon(self) -> None:
        with self.stage.ledger.writing() as session:
            nodes.uncordon(session, "a100", "n2", "ana", self.now)

    def trouble(self) -> None:
        self.stage.launcher.unreachable.add("gone")
        self.stage.launcher.broken.add("broken")

    def mend(self) -> None:
        self.stage.launcher.unreachable.clear()
        self.stage.launcher.broken.clear()

    def rule(self) -> None:
        self.policy = 1 - self.policy
        self.stage.write_policy(POLICIES[self.policy])


class Decisions:
    """Every decision that is made, with what it was made from."""

    def __init__(self) -> None:
        self.made: list[tuple[State, float, Plan]] = []

    def plan(self, policy: Any, state: State, now: float) -> Plan:
        # Copied: the daemon goes on with what it handed over.
        frozen = replace(
            state,
            requests=list(state.requests),
            source_starts=dict(state.source_starts),
            blocked=dict(state.blocked),
        )
        self.made.append((frozen, now, plan(policy, state, now)))
        return self.made[-1][2]


@pytest.mark.parametrize("seed", range(3))
def test_memory_is_what_the_ledger_has_and_the_record_gives_the_same_decisions(
    open_stage: OpenStage, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    stage = open_stage(
        POLICIES[0],
        max_user_code_failure_retries=2,
        user_code_failure_retry_delay=5,
        run_monitoring={"start_timeout_seconds": 7200},
    )
    decisions = Decisions()
    monkeypatch.setattr(engine_module, "plan", decisions.plan)
    story = Story(stage, seed)

    for _ in range(STEPS):
        story.go_on()
        stage.pass_(at=story.now)
        assert_memory_is_the_ledger(stage, story.now)
    # What failed in the last pass is seen to be over in the next.
    stage.pass_(at=story.now + 1)
    stage.assert_nothing_lost()

    with stage.ledger.reading() as session:
        record = events.since(session, 0)
        written = {each.version: parse_policy(each.document) for each in policies.history(session)}
    by_moment = {now: (state, decided) for state, now, decided in decisions.made}
    passes = list(past_passes(record))
    assert len(passes) > STEPS / 10
    for past in passes:
        policy = written[past.policy_version]
        state, decided = by_moment[past.at]
        rebuilt = past.state(policy)
        assert_alike(rebuilt, state)
        again = plan(policy, rebuilt, past.at)
        assert [_start(each) for each in again.starts] == [_start(each) for each in decided.starts]
        assert again.reasons() == decided.reasons()
        assert tuple(start.request.id for start in again.starts) == past.started


def assert_alike(rebuilt: State, decided_from: State) -> None:
    """Equal but for the order of leases, and for what is said of requests and sources that do not wait."""
    waiting = {request.id for request in decided_from.requests}
    sources = {(request.team, request.source) for request in decided_from.requests}
    assert rebuilt.requests == decided_from.requests
    assert by_id(rebuilt) == by_id(decided_from)
    assert dict(rebuilt.used) == dict(decided_from.used)
    assert rebuilt.cordoned == decided_from.cordoned
    starts = decided_from.source_starts.items()
    assert rebuilt.source_starts == {source: at for source, at in starts if source in sources}
    blocked = decided_from.blocked.items()
    assert rebuilt.blocked == {id_: why for id_, why in blocked if id_ in waiting}


def by_id(state: State) -> list[Lease]:
    return sorted(state.leases, key=lambda lease: lease.id)


def _start(start: Any) -> Any:
    return start.request.id, start.pool, start.gpus, dict(start.nodes), start.class_


def assert_memory_is_the_ledger(stage: Stage, now: float) -> None:
    """A daemon that begins now would decide from the same as the one that goes on."""
    engine = stage.daemon._gate.engine
    in_memory = engine.state(engine.book.blocked, now)
    with stage.ledger.reading() as session:
        in_ledger = state_of(session, engine.rules.policy, now)
    # What was over before a pass has seen it is swept out of the ledger within a minute.
    unfinished = stage.unfinished()
    assert list(in_memory.requests) == [
        each for each in in_ledger.requests if each.id in unfinished
    ]
    assert by_id(in_memory) == by_id(in_ledger)
    assert in_memory.source_starts == in_ledger.source_starts
    assert in_memory.cordoned == in_ledger.cordoned
    assert in_memory.blocked == in_ledger.blocked
    assert in_memory.used.keys() == in_ledger.used.keys()
