"""A pass decides like one that looks at everything again for each turn, and searches anew for each asker."""

from __future__ import annotations

from unittest.mock import patch

from hypothesis import HealthCheck, given, settings
from scheduling_plain_queue import PlainQueue, PlainVictims
from scheduling_strategies import NOW, policies, states, stories
from scheduling_world import Story

from dagster_gpufair.policy.models import Policy
from dagster_gpufair.scheduling.model import Plan, State
from dagster_gpufair.scheduling.plan import plan

often = settings(
    max_examples=80,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def by_the_plain_queue(policy: Policy, state: State, now: float) -> Plan:
    with (
        patch("dagster_gpufair.scheduling.plan.Queue", PlainQueue),
        patch("dagster_gpufair.scheduling.plan.Victims", PlainVictims),
    ):
        return plan(policy, state, now)


def assert_alike(result: Plan, expected: Plan) -> None:
    assert result.starts == expected.starts
    assert result.preemptions == expected.preemptions
    assert result.reservations == expected.reservations
    assert result.withdrawn == expected.withdrawn
    assert result.reasons() == expected.reasons()


@often
@given(policies(), states())
def test_any_queue_is_decided_as_by_the_plain_one(policy: Policy, state: State):
    assert_alike(plan(policy, state, NOW), by_the_plain_queue(policy, state, NOW))


@often
@given(stories())
def test_all_passes_of_a_story_are_decided_as_by_the_plain_one(story: Story):
    for done in story.passes():
        expected = by_the_plain_queue(done.policy, done.before, done.now)
        assert_alike(done.plan, expected)
