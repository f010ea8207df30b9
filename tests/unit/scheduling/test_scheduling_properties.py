"""What always holds, whatever the policy and the state."""

from __future__ import annotations

import random
from dataclasses import replace

import scheduling_reference as reference
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from scheduling_reference import Moment
from scheduling_strategies import NOW, policies, states

from dagster_gpufair.policy.models import Backfill, Policy
from dagster_gpufair.scheduling.explaining.forecast import forecast
from dagster_gpufair.scheduling.explaining.places import places
from dagster_gpufair.scheduling.explaining.refusal import why_never
from dagster_gpufair.scheduling.model import Class, State
from dagster_gpufair.scheduling.plan import plan

rules_and_states = given(policies(), states())
rules_and_named_states = given(policies(), states(named=True))
thorough = settings(
    max_examples=100,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@settings(thorough, max_examples=200)
@rules_and_states
def test_where_nothing_is_kept_the_plan_is_that_of_the_plain_loop(policy: Policy, state: State):
    policy = policy.model_copy(update={"backfill": Backfill(reserve_after="3650d")})
    result, expected = plan(policy, state, NOW), reference.decide(policy, state, NOW)
    assume(not result.reservations)
    assert [
        (start.request.id, start.pool, start.gpus, start.nodes, start.class_, start.points)
        for start in result.starts
    ] == [
        (start.request.id, start.pool, start.gpus, start.nodes, start.class_, start.points)
        for start in expected.starts
    ]
    assert result.reasons() == expected.reasons
    place_of = places(result)
    assert sorted(place_of, key=lambda id: place_of[id]) == [
        id for id, pool in sorted(expected.line, key=lambda entry: entry[1])
    ]


@thorough
@rules_and_named_states
def test_every_start_is_allowed_when_it_happens(policy: Policy, state: State):
    for start in plan(policy, state, NOW).starts:
        moment, team, pool = Moment(policy, state, NOW), start.request.team, start.pool
        assert start.gpus <= moment.free(pool) - moment.held_back_by_others(team, pool)
        assert start.gpus in start.request.sizes
        use, quota = moment.use(team, pool), moment.quota(team, pool)
        if start.class_ is Class.GUARANTEED:
            assert use + start.gpus <= quota
        if start.class_ is Class.BORROWING:
            assert policy.borrowing.mode == "auto"
            limit = policy.teams[team].borrow_limit.get(pool)
            assert limit is None or use + start.gpus - quota <= limit
        free_on = moment.on_nodes[pool]
        if free_on is not None:
            assert sum(start.nodes.values()) == start.gpus
            assert all(part <= free_on[node] for node, part in start.nodes.items())
            assert not state.cordoned.get(pool, frozenset()) & start.nodes.keys()
        state = state.after([start], NOW)


@thorough
@rules_and_named_states
def test_where_nothing_is_kept_nothing_waits_that_could_start(policy: Policy, state: State):
    result = plan(policy, state, NOW)
    assume(not result.reservations)
    after = Moment(policy, state.after(result.starts, NOW), NOW)
    for group in result.waiting:
        for request in group.requests:
            assert after.first_that_can_start(request) == (None, 0)


@thorough
@rules_and_named_states
def test_planning_again_at_once_starts_nothing(policy: Policy, state: State):
    first = plan(policy, state, NOW)
    again = plan(policy, state.after(first.starts, NOW), NOW)
    assert again.starts == []
    assert again.waiting == first.waiting


@thorough
@given(policies(), states(), st.randoms(use_true_random=False))
def test_the_order_of_what_is_given_does_not_matter(
    policy: Policy, state: State, chance: random.Random
):
    def shuffled(mapping):
        return dict(chance.sample(list(mapping.items()), len(mapping)))

    other_state = replace(
        state,
        requests=chance.sample(state.requests, len(state.requests)),
        leases=chance.sample(state.leases, len(state.leases)),
        used=shuffled(state.used),
        source_starts=shuffled(state.source_starts),
        blocked=shuffled(state.blocked),
    )
    other_policy = policy.model_copy(
        update={"pools": shuffled(policy.pools), "teams": shuffled(policy.teams)}
    )
    assert plan(other_policy, other_state, NOW) == plan(policy, state, NOW)


@thorough
@rules_and_states
def test_every_request_starts_or_waits_for_one_reason(policy: Policy, state: State):
    result = plan(policy, state, NOW)
    started = [start.request.id for start in result.starts]
    waiting = [request.id for group in result.waiting for request in group.requests]
    assert sorted(started + waiting) == sorted(request.id for request in state.requests)
    assert places(result).keys() == set(waiting)
    assert all(group.reason and group.message for group in result.waiting)


@thorough
@rules_and_states
def test_what_could_never_start_never_does(policy: Policy, state: State):
    for start in plan(policy, state, NOW).starts:
        assert why_never(policy, start.request) is None


@settings(thorough, max_examples=50)
@rules_and_states
def test_a_forecast_begins_with_what_starts_now(policy: Policy, state: State):
    times = forecast(policy, state, NOW, steps=6)
    now = {start.request.id for start in plan(policy, state, NOW).starts}
    assert {id for id, at in times.items() if at == NOW} >= now
    assert all(at >= NOW for at in times.values())
