"""That the checks of `test_scheduling_always` find what is wrong: each is shown a pass that breaks a rule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from scheduling_builder import NOW, ask, holds, policy, state
from scheduling_checks import (
    Pass,
    idle_room,
    invaded,
    moved_later,
    on_cards,
    over_capacity,
    unsound_reasons,
    wrong_victims,
)

from dagster_gpufair.policy.models import Policy
from dagster_gpufair.scheduling.model import (
    Class,
    Plan,
    Points,
    Preemption,
    Promise,
    Request,
    Reservation,
    Start,
    State,
    Victim,
    Waiting,
)

NO_POINTS = Points(0, 0, 0, 0, 0, 0, 0)
TEAMS = {"red": {"quota": {"t4": 2}}, "blue": {"quota": {"t4": 2}}}


def passed(rules: Policy, before: State, now: float = NOW, **plan: Any) -> Pass:
    decided = Plan(**{"starts": (), "waiting": (), **plan})
    return Pass(rules, before, now, decided, before.following(decided, now, rules.grace))


def start(request: Request, nodes: Mapping[str, int] = {}) -> Start:
    pool = request.pools[0]
    return Start(request, pool, request.gpus, nodes, Class.GUARANTEED, 0.0, NO_POINTS)


def waits(request: Request, reason: str, message: str = "because") -> Waiting:
    pool = request.pools[0]
    return Waiting([request], reason, message, pool, Class.GUARANTEED, 0.0, NO_POINTS)


def preempts(
    request: Request, rule: str, *leases: Any, nodes: Mapping[str, int] = {}
) -> Preemption:
    victims = [Victim(lease, rule) for lease in leases]
    return Preemption(request, Promise(request.pools[0], request.gpus, nodes), victims)


def test_fractions_lie_on_one_card_each():
    assert on_cards([500, 500, 1000], cards=2)
    assert on_cards([700, 500, 300, 500], cards=2)
    assert not on_cards([700, 700, 500], cards=2)
    assert not on_cards([1500, 700], cards=2)


def test_a_start_on_taken_gpus_is_over_capacity():
    before = state([ask("q1", "red", "t4", 2)], [holds("r1", "blue", "t4", 3)])
    assert over_capacity(
        passed(policy({"t4": 4}, TEAMS), before, starts=[start(before.requests[0])])
    )
    assert not over_capacity(
        passed(policy({"t4": 5}, TEAMS), before, starts=[start(before.requests[0])])
    )


def test_a_promise_on_gpus_that_nobody_leaves_is_over_capacity():
    rules = policy({"t4": {"n1": 2}}, TEAMS)
    asker, lease = ask("q1", "red", "t4", 2), holds("r1", "blue", "t4", 1, on="n1")
    preemption = preempts(asker, "reclaim", nodes={"n1": 2000})
    assert over_capacity(passed(rules, state([asker], [lease]), preemptions=[preemption]))
    leaves = preempts(asker, "reclaim", lease, nodes={"n1": 2000})
    assert not over_capacity(passed(rules, state([asker], [lease]), preemptions=[leaves]))


def test_a_start_across_cards_or_on_a_cordoned_node_is_over_capacity():
    rules, asker = policy({"t4": {"n1": 2, "n2": 2}}, TEAMS), ask("q1", "red", "t4", 0.7)
    there = [holds(f"r{at}", "red", "t4", 0.7, on="n1") for at in range(2)]
    assert over_capacity(passed(rules, state([asker], there), starts=[start(asker, {"n1": 700})]))
    away = state([asker], cordoned={"t4": ["n2"]})
    assert over_capacity(passed(rules, away, starts=[start(asker, {"n2": 700})]))


@pytest.mark.parametrize(
    "teams",
    [
        {"red": {}, "blue": {"quota": {"t4": 2}, "lend_limit": {"t4": 0}}},
        {
            "red": {
                "quota": {"t4": 2},
                "projects": {"x": {"quota": {"t4": 2}, "lend_limit": {"t4": 0}}},
            }
        },
    ],
)
def test_a_start_on_what_others_hold_back_invades_it(teams: dict[str, Any]):
    asker = ask("q1", "red", "t4", 2)
    before = state([asker])
    assert invaded(passed(policy({"t4": 3}, teams), before, starts=[start(asker)]))
    assert not invaded(passed(policy({"t4": 4}, teams), before, starts=[start(asker)]))


class TestVictims:
    """Red wants its quota of two, blue has borrowed; r1 is covered, r2 is not."""

    asker = ask("q1", "red", "t4", 2)
    covered = holds("r1", "blue", "t4", 2, since="2h")
    borrowed = holds("r2", "blue", "t4", 2, since="1h")

    def wrong(self, *victims: Any, mode: str = "auto", pool: int = 4, **changes: Any) -> list[str]:
        running = [self.covered, replace(self.borrowed, **changes)]
        leases = [lease for lease in running if lease.id in victims]
        rules = policy({"t4": pool}, TEAMS, preemption={"mode": mode})
        preemption = preempts(self.asker, "reclaim", *leases)
        waiting = [waits(self.asker, "preempting")]
        before = state([self.asker], running)
        return wrong_victims(passed(rules, before, waiting=waiting, preemptions=[preemption]))

    def test_the_borrowed_lease_may_be_one(self):
        assert not self.wrong("r2")

    def test_what_a_quota_covers_may_not(self):
        assert self.wrong("r1") == ["q1: reclaim does not hold for r1"]

    def test_nobody_is_one_while_preemption_is_off(self):
        assert self.wrong("r2", mode="off")

    @pytest.mark.parametrize(
        "changes",
        [{"started": NOW - 60}, {"notice_until": NOW + 60}, {"tier": "critical"}],
    )
    def test_what_is_protected_is_none(self, changes: dict[str, Any]):
        assert self.wrong("r2", **changes)

    def test_one_is_not_needed_where_there_is_room(self):
        assert self.wrong("r2", pool=6) == ["q1 preempts, though it could start"]

    def test_one_is_not_needed_where_enough_ends_by_itself(self):
        running = [self.covered, self.borrowed, holds("r3", "blue", "t4", 2, max_duration="61m")]
        preemption = preempts(self.asker, "reclaim", self.borrowed)
        rules = policy({"t4": 6}, TEAMS, preemption={"mode": "auto"})
        assert wrong_victims(passed(rules, state([self.asker], running), preemptions=[preemption]))

    def test_two_are_too_many_where_one_is_enough(self):
        more = holds("r3", "blue", "t4", 2, since="30m")
        running = [self.covered, self.borrowed, more]
        preemption = preempts(self.asker, "reclaim", self.borrowed, more)
        rules = policy({"t4": 6}, TEAMS, preemption={"mode": "auto"})
        wrong = wrong_victims(passed(rules, state([self.asker], running), preemptions=[preemption]))
        assert wrong == ["q1 does not need r2 beside ['r3']", "q1 does not need r3 beside ['r2']"]

    def test_they_are_none_where_they_do_not_suffice(self):
        rules = policy({"t4": {"n1": 2, "n2": 2}}, TEAMS, preemption={"mode": "auto"})
        here, there = (
            holds(f"r{at}", "blue", "t4", 1, on=f"n{at}", tier="exploratory") for at in (1, 2)
        )
        more = [holds(f"s{at}", "blue", "t4", 1, on=f"n{at}", since="5h") for at in (1, 2)]
        preemption = preempts(self.asker, "reclaim", here, there, nodes={"n1": 2000})
        before = state([self.asker], [here, there, *more])
        assert wrong_victims(passed(rules, before, preemptions=[preemption]))


def test_work_with_room_does_not_wait():
    asker = ask("q1", "red", "t4", 2)
    rules = policy({"t4": 4}, TEAMS)
    for reason in ("insufficient_gpus", "fragmented"):
        assert idle_room(passed(rules, state([asker]), waiting=[waits(asker, reason)]))
    other = ask("q2", "blue", "t4", 3)
    reserved = Reservation(other, "t4", 3000, {}, NOW + 60, Class.GUARANTEED)
    kept = {"waiting": [waits(asker, "lower_priority")], "reservations": [reserved]}
    running = [holds("r1", "blue", "t4", 2, max_duration="61m")]
    assert not idle_room(passed(rules, state([asker, other], running), **kept))


def test_only_what_has_room_waits_for_its_rank():
    asker, lease = ask("q1", "red", "t4", 2), holds("r1", "blue", "t4", 3)
    waiting = [waits(asker, "lower_priority")]
    assert idle_room(passed(policy({"t4": 4}, TEAMS), state([asker], [lease]), waiting=waiting))


def test_reasons_are_one_each_from_the_list():
    rules, asker = policy({"t4": 4}, TEAMS), ask("q1", "red", "t4", 2)
    before = state([asker])
    assert unsound_reasons(passed(rules, before))
    assert unsound_reasons(passed(rules, before, waiting=[waits(asker, "bad_luck")]))
    assert unsound_reasons(passed(rules, before, waiting=[waits(asker, "fragmented", " ")]))
    assert unsound_reasons(passed(rules, before, waiting=[waits(asker, "preempting")]))
    assert unsound_reasons(passed(rules, before, waiting=[waits(asker, "fragmented")] * 2))
    assert not unsound_reasons(passed(rules, before, waiting=[waits(asker, "fragmented")]))


def test_a_reservation_that_moves_is_seen():
    rules, asker = policy({"t4": 4}, TEAMS), ask("q1", "red", "t4", 2)
    before, waiting = state([asker]), [waits(asker, "insufficient_gpus")]

    def at(now: float, starts: float | None) -> Pass:
        kept = Reservation(asker, "t4", 2000, {}, starts, Class.GUARANTEED)
        reservations = [] if starts is None else [kept]
        return passed(rules, before, now, waiting=waiting, reservations=reservations)

    earlier = at(NOW, NOW + 600)
    assert not moved_later(earlier, at(NOW + 60, NOW + 600))
    assert not moved_later(earlier, passed(rules, before, NOW + 600, starts=[start(asker)]))
    assert moved_later(earlier, at(NOW + 60, NOW + 700))
    assert moved_later(earlier, at(NOW + 60, None))
    assert moved_later(earlier, at(NOW + 600, NOW + 600))
