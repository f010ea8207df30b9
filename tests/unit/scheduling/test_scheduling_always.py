"""What is always true of the decision (design, section 5), on random policies, states and stories.

`scheduling_checks` judges each pass, plainly and by itself. Run more with
``pytest tests/unit/scheduling/test_scheduling_always.py --hypothesis-profile thorough``.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from scheduling_checks import (
    Books,
    Pass,
    idle_room,
    invaded,
    moved_later,
    on_wrong_cards,
    over_capacity,
    unsound_reasons,
    wrong_victims,
)
from scheduling_strategies import (
    calm_stories,
    covered_stories,
    ending_stories,
    lasting_stories,
    stories,
)
from scheduling_world import NOW, Story, World, told

from dagster_gpufair.policy.models import Policy
from dagster_gpufair.scheduling.model import Class, Plan, State
from dagster_gpufair.scheduling.plan import plan

USUAL_EXAMPLES = 100


def examples(number: int) -> settings:
    """So many of them, the same in every run; more or fewer by the profile, and thorough ones at random."""
    usual = settings().max_examples
    return settings(
        max_examples=max(1, number * usual // USUAL_EXAMPLES),
        derandomize=usual <= USUAL_EXAMPLES,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


def holds_in(story: Story, *checks: Callable[[Pass], Iterable[str]]) -> None:
    """All is well in each pass of a story."""
    passes = []
    for done in story.passes():
        passes.append(done)
        wrong = [each for check in checks for each in check(done)]
        if wrong:
            note(told(passes))
        assert not wrong


@examples(600)
@given(stories())
def test_starts_and_promises_never_exceed_a_pool_a_node_or_a_card(story: Story):
    holds_in(story, over_capacity)


@examples(300)
@given(stories())
def test_a_lease_keeps_its_cards_and_no_two_have_more_than_there_is_of_one(story: Story):
    holds_in(story, on_wrong_cards)


@examples(500)
@given(stories())
def test_no_start_takes_what_is_held_back_for_others(story: Story):
    holds_in(story, invaded)


@examples(700)
@given(stories())
def test_nobody_is_stopped_who_is_protected_or_not_needed(story: Story):
    holds_in(story, wrong_victims)


@examples(600)
@given(stories())
def test_nothing_waits_that_has_room(story: Story):
    holds_in(story, idle_room)


@examples(300)
@given(stories())
def test_every_request_starts_or_waits_for_one_reason_of_the_list(story: Story):
    holds_in(story, unsound_reasons)


@examples(500)
@given(stories(most_moves=2))
def test_planning_again_at_once_changes_nothing(story: Story):
    """But where work may be stopped the moment it has started: there the next pass may do so."""
    for done in story.passes():
        rules = [done.policy.stop_rules(pool) for pool in done.policy.pools]
        if not all(each.min_runtime for each in rules):
            continue
        again = plan(done.policy, done.after, done.now)
        after = done.after.following(again, done.now, done.policy.grace)
        same = (
            not again.starts
            and acts(again) == acts(done.plan, awaiting=True)
            and not again.withdrawn
            and not again.renewed
            and again.reasons() == done.plan.reasons()
        )
        if not same:
            note(told([done, Pass(done.policy, done.after, done.now, again, after)]))
        assert same


def acts(plan: Plan, awaiting: bool = False) -> list[tuple[str, list[str]]]:
    """Who is to leave for whom; with ``awaiting``, only where a person has not agreed yet."""
    return [
        (each.request.id, [victim.lease.id for victim in each.victims])
        for each in plan.preemptions
        if each.awaits_approval or not awaiting
    ]


@examples(250)
@given(stories(most_moves=2), st.randoms(use_true_random=False))
def test_the_order_of_what_is_given_does_not_change_the_plan(story: Story, chance: random.Random):
    for done in story.passes():
        written = shuffled(done.policy.model_dump(by_alias=True, exclude_unset=True), chance)
        for section in written.keys() & {"grants", "windows"}:
            written[section] = chance.sample(written[section], len(written[section]))
        policy = Policy.model_validate(written)
        assert plan(policy, shuffled_state(done.before, chance), done.now) == done.plan


def shuffled(value: Any, chance: random.Random) -> Any:
    """Another order of the keys, of all the way down."""
    if not isinstance(value, dict):
        return value
    items = [(key, shuffled(its, chance)) for key, its in value.items()]
    return dict(chance.sample(items, len(items)))


def shuffled_state(state: State, chance: random.Random) -> State:
    def mixed(mapping: Any) -> dict:
        return dict(chance.sample(list(mapping.items()), len(mapping)))

    leases = [replace(lease, nodes=mixed(lease.nodes)) for lease in state.leases]
    return replace(
        state,
        requests=chance.sample(list(state.requests), len(state.requests)),
        leases=chance.sample(leases, len(leases)),
        used=mixed(state.used),
        source_starts=mixed(state.source_starts),
        cordoned=mixed(state.cordoned),
        blocked=mixed(state.blocked),
    )


@examples(100)
@given(calm_stories())
def test_no_runs_stop_each_other_in_turns_when_victims_come_back(story: Story):
    """No two stop each other, and in the last 15 of 50 passes nobody is stopped by whom he was before.

    Passes are at all moments at which something new may be decided, and then hours apart.
    """
    world = lived(story, passes=50)
    stops = [
        {
            (preemption.request.id, victim.lease.id)
            for preemption in done.plan.preemptions
            for victim in preemption.victims
        }
        for done in world.passes
    ]
    early, late = set().union(*stops[:-15]), set().union(*stops[-15:])
    each_other = {(one, other) for one, other in early | late if (other, one) in early | late}
    if each_other or early & late:
        note(told([done for done in world.passes if done.plan.preemptions]))
    assert not each_other
    assert not early & late


@examples(120)
@given(covered_stories())
def test_what_a_quota_covers_starts_once_bounded_work_has_ended(story: Story):
    """Where preemption is on, protected work has bounds, and shapes do not matter.

    But what a quota covers waits while that quota is kept for a larger and better request of its account;
    and where borrowing time ends, what it covers may start and be stopped, by better work of its account, in
    turns.
    """
    world = lived(story, passes=100)
    last = world.passes[-1]
    books, waiting = last.at_its_end, world.state.requests
    has_turns = {start.request.id for done in world.passes[-50:] for start in done.plan.starts}
    claimed = {
        (books.account(each.request, each.pool), each.pool)
        for each in last.plan.reservations
        if each.of_quota
    }
    covered = [
        (request.id, pool)
        for request in waiting
        for pool in request.pools
        if books.covered_by(request, pool, request.sizes[-1]) is Class.GUARANTEED
        and (books.account(request, pool), pool) not in claimed
        and request.id not in has_turns
    ]
    if covered:
        note(told(world.passes))
    assert not covered


@examples(100)
@given(ending_stories())
def test_everything_allowed_starts_in_the_end_where_all_work_has_bounds(story: Story):
    idle = State(cordoned=story.state.cordoned)
    much_later = Books(story.policy, idle, NOW + 10**6)
    waiting = {
        request.id
        for request in story.state.requests
        if request.id not in story.state.blocked
        and any(
            much_later.may_start(request, pool, gpus)
            for pool in request.pools
            for gpus in request.sizes
        )
    }
    world = story.world()
    for _ in range(200):
        waiting -= {start.request.id for start in world.decide().plan.starts}
        if not waiting:
            break
        world.wait_for_something() or world.wait(7200)
    if waiting:
        note(told(world.passes))
    assert not waiting


@examples(250)
@given(lasting_stories())
def test_a_reserved_start_is_never_moved_later_and_is_kept(story: Story):
    """While nothing better comes up and no rule or node changes."""
    world = story.world()
    world.decide()
    for _ in range(12):
        if not world.wait_for_something():
            break
        world.decide()
        wrong = moved_later(*world.passes[-2:])
        if wrong:
            note(told(world.passes))
        assert not wrong


def lived(story: Story, passes: int) -> World:
    """The world after so many passes, at the next moment that matters each, else hours apart."""
    world = story.world()
    for _ in range(passes - 1):
        world.decide()
        world.wait_for_something() or world.wait(7200)
    world.decide()
    return world
