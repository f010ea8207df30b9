"""A random story of users, runs, operators and trouble: what the daemon keeps in memory is what the ledger
has, and every decision can be made again from the record."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gate_stage import Stage, code_server

from dagster_gpufair.engine import engine as engine_module
from dagster_gpufair.ledger import approvals, events, nodes, pauses, policies, requests
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
PREEMPTS = [
    """
    pools: {a100: {nodes: {n1: 8, n2: 8}}, t4: {gpus: 4, preemption: {mode: approval}}}
    teams:
      red: {quota: {a100: 8, t4: 4}, projects: {deep: {quota: {a100: 2}}}}
      blue: {quota: {a100: 4}, borrowing: {max_duration: 30m}}
      green: {}
    preemption: {mode: auto, grace: 1m, min_runtime: 10s}
    """,
    """
    pools: {a100: {nodes: {n1: 8, n2: 8}}, t4: {gpus: 4}}
    teams:
      red: {quota: {a100: 4}}
      blue: {quota: {a100: 8}}
      green: {quota: {t4: 2}}
    preemption: {mode: auto, grace: 0s, min_runtime: 10s, rebalance: true}
    """,
]
CODE = Path(__file__).with_name("stage_training.py")
STEPS = 60


class Story:
    """What may happen between two passes, by chance."""

    def __init__(self, stage: Stage, seed: int, policies: Sequence[str]):
        self.stage = stage
        self.policies = policies
        self.preempts = policies is PREEMPTS
        self.chance = random.Random(seed)
        self.now = time.time()
        self.policy = 0

    def go_on(self) -> None:
        """Something happens, and some time goes by."""
        for _ in range(self.chance.randint(0, 6 if self.preempts else 3)):
            self.chance.choice(
                [self.submit] * 6
                + [self.start] * 4
                + [self.end] * 4
                + [self.cancel, self.cordon, self.uncordon, self.trouble, self.mend, self.rule]
                + [
                    *[self.submit] * 12,
                    *[self.start] * 10,
                    self.pause,
                    *[self.resume] * 3,
                    *[self.decide] * 2,
                ]
                * self.preempts
            )()
        self.now += self.chance.choice([1.0, 1.0, 5.0, 20.0, 600.0, 3600.0])

    def submit(self) -> None:
        asks = self.chance.choice(
            [
                {
                    "pool": "a100",
                    "gpus": self.chance.choice([8, 4, 4] if self.preempts else [1, 2, 4, 8]),
                },
                {"pool": "a100,t4", "gpus": "2-4"},
                {"pool": "t4", "gpus": self.chance.choice(["0.5", "1", "2"])},
            ]
        )
        team = self.chance.choice(["red", "blue", "green"])
        more: dict[str, Any] = self.chance.choice(
            [{}, {"max_duration": "2h"}, {"user": self.chance.choice(["ann", "ben"])}]
        )
        if self.preempts:
            # A job that is there, so that what is stopped can go on.
            self.stage.launch(team=team, **asks, **more)
            return
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
        self.stage.write_policy(self.policies[self.policy])

    def pause(self) -> None:
        what = self.chance.choice(["preemption", "borrowing"])
        with self.stage.ledger.writing() as session:
            pauses.pause(session, what, "ana", "a look", self.now)

    def resume(self) -> None:
        what = self.chance.choice(["preemption", "borrowing"])
        with self.stage.ledger.writing() as session:
            pauses.resume(session, what, "ana", "seen", self.now)

    def decide(self) -> None:
        as_ = self.chance.choice(["approved", "rejected"])
        with self.stage.ledger.writing() as session:
            for id_ in approvals.in_state(session, "proposed"):
                asks = requests.by_ids(session, [id_])[id_]
                approvals.decide(session, asks, as_, "ana", "seen", self.now)

    def begin(self) -> None:
        """Whatever chance brings later: work that borrows is stopped for its owner's."""
        if not self.preempts:
            return
        for _ in range(2):
            self.stage.launch(team="green", pool="a100", gpus=8)
        self.stage.pass_(at=self.now)
        for run_id in self.stage.holders():
            self.stage.start(run_id)
        self.stage.pass_(at=self.now + 1)
        self.stage.launch(team="red", pool="a100", gpus=4)
        for seconds in (60, 61, 122):
            self.stage.pass_(at=self.now + seconds)
        self.now += 122
        self.let_stops_be_over()

    def let_stops_be_over(self) -> None:
        """What is stopped, and what goes on after, is so beside the passes."""
        book = self.stage.daemon._gate.engine.book

        def is_over() -> bool:
            stopping = [one for one in book.leases.values() if one.state == "stopping"]
            return not stopping and not book.to_go_on()

        deadline = time.monotonic() + 60
        while not is_over():
            assert time.monotonic() < deadline
            time.sleep(0.02)
            self.now += 0.1
            self.stage.pass_(at=self.now)


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


@pytest.fixture(scope="module")
def code() -> Iterator[int]:
    """The port of a code server."""
    with code_server(CODE) as port:
        yield port


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("rules", [POLICIES, PREEMPTS], ids=["plain", "preempts"])
def test_memory_is_what_the_ledger_has_and_the_record_gives_the_same_decisions(
    open_stage: OpenStage,
    monkeypatch: pytest.MonkeyPatch,
    code: int,
    rules: Sequence[str],
    seed: int,
) -> None:
    stage = open_stage(
        rules[0],
        code=code if rules is PREEMPTS else None,
        max_user_code_failure_retries=2,
        user_code_failure_retry_delay=5,
        # Launches bear the real time, and these passes run ahead of it.
        run_monitoring={"start_timeout_seconds": 7200 if rules is POLICIES else 1_000_000},
    )
    decisions = Decisions()
    monkeypatch.setattr(engine_module, "plan", decisions.plan)
    story = Story(stage, seed, rules)

    story.begin()
    for _ in range(STEPS):
        story.go_on()
        stage.pass_(at=story.now)
        story.let_stops_be_over()
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
    assert any(event.kind == "preempted" for event in record) == (rules is PREEMPTS)
    for past in passes:
        policy = past.rules(written[past.policy_version])
        state, decided = by_moment[past.at]
        rebuilt = past.state(policy)
        assert_alike(rebuilt, state)
        again = plan(policy, rebuilt, past.at)
        assert [_start(each) for each in again.starts] == [_start(each) for each in decided.starts]
        assert again.reasons() == decided.reasons()
        assert again.preemptions == decided.preemptions
        assert (again.withdrawn, again.spared) == (decided.withdrawn, decided.spared)
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
    waiting = {id_ for id_, each in engine.book.queued.items() if each.run_id in unfinished}
    assert list(in_memory.requests) == [each for each in in_ledger.requests if each.id in waiting]
    assert by_id(in_memory) == by_id(in_ledger)
    assert in_memory.source_starts == in_ledger.source_starts
    assert in_memory.cordoned == in_ledger.cordoned
    assert in_memory.blocked == in_ledger.blocked
    assert in_memory.used.keys() == in_ledger.used.keys()
