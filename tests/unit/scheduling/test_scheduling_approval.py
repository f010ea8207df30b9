"""What a person is asked for is not carried out: what ends in the same pass ends all the same."""

from __future__ import annotations

from scheduling_builder import NOW, ask, decide, holds, policy

from dagster_gpufair.scheduling.model import Promise


def test_a_notice_for_a_promise_that_is_void_ends_though_a_person_is_asked_to_stop_the_same_run():
    rules = policy(
        {"t4": 4}, {"red": {"quota": {"t4": 4}}, "blue": {}}, preemption={"mode": "approval"}
    )
    running = [
        holds("b1", "blue", "t4", 2, notice_until=NOW + 180, notice_for="q"),
        holds("b2", "blue", "t4", 2),
    ]
    found = decide(rules, [ask("q", "red", "t4", 4, promised=Promise("t4", 4000))], running).plan

    assert found.withdrawn == ["q"]
    assert found.spared == ["b1"]
    assert [each.awaits_approval for each in found.preemptions] == [True]
    assert {victim.lease.id for victim in found.preemptions[0].victims} == {"b1", "b2"}
