"""About when what waits starts, as far as that follows from bounds."""

from __future__ import annotations

from scheduling_builder import NOW, ask, holds, policy, seconds, state

from dagster_gpufair.scheduling.explaining.forecast import forecast

RULES = policy({"t4": 4}, {"a": {"quota": {"t4": 4}}})


def minutes_until(rules, *args, steps=25, **kwargs):
    times = forecast(rules, state(*args, **kwargs), NOW, steps)
    return {id: (at - NOW) / 60 for id, at in times.items()}


def test_what_waits_starts_when_bounded_leases_end():
    running = [
        holds("r1", "a", "t4", 2, since="30m", max_duration="1h"),
        holds("r2", "a", "t4", 2, since="30m", max_duration="2h"),
    ]
    queued = [ask("two", "a", "t4", 2, waited="1h"), ask("four", "a", "t4", 4, waited="5m")]
    assert minutes_until(RULES, queued, running) == {"two": 30}
    bounded = [ask("two", "a", "t4", 2, waited="1h", max_duration="10m"), queued[1]]
    assert minutes_until(RULES, bounded, running) == {"two": 30, "four": 90}


def test_nothing_is_said_without_a_bound():
    assert minutes_until(RULES, [ask("q", "a", "t4", 1)], [holds("r", "a", "t4", 4)]) == {}


def test_what_starts_now_starts_now():
    assert minutes_until(RULES, [ask("q", "a", "t4", 1)]) == {"q": 0}


def test_what_is_overdue_is_about_to_end():
    running = [holds("r", "a", "t4", 4, since="2h", max_duration="1h")]
    assert minutes_until(RULES, [ask("q", "a", "t4", 1)], running) == {"q": 0}


def test_what_is_blocked_has_no_time():
    queued = [ask("q", "a", "t4", 1)]
    assert minutes_until(RULES, queued, blocked={"q": ("paused", "a is paused.")}) == {}


def test_it_looks_only_so_many_steps_ahead():
    queued = [
        ask(f"q{at}", "a", "t4", 4, waited=f"{9 - at}m", max_duration="1h") for at in range(5)
    ]
    assert minutes_until(RULES, queued, steps=3) == {"q0": 0, "q1": 60, "q2": 120}


def test_the_order_is_that_of_the_time_it_happens():
    """In a day the one that waits longer has gained no lead, but the other nears its committed start."""
    rules = policy(
        {"t4": 1},
        {"a": {"quota": {"t4": 1}, "tiers": ["milestone", "standard"]}},
        ordering={"deadline_points": 5000},
    )
    running = [holds("r", "a", "t4", 1, since="0s", max_duration="2h")]
    queued = [
        ask("standard", "a", "t4", 1, waited="15h", max_duration="1h"),
        ask("milestone", "a", "t4", 1, tier="milestone", waited="0s", max_duration="1h"),
    ]
    times = forecast(rules, state(queued, running), NOW)
    assert times == {"milestone": NOW + seconds("2h"), "standard": NOW + seconds("3h")}


def test_work_is_expected_to_end_when_work_like_it_usually_does():
    running = [holds("r1", "a", "t4", 4, since="30m")]
    queued = [ask("q", "a", "t4", 4)]
    assert minutes_until(RULES, queued, running) == {}
    usual = forecast(RULES, state(queued, running), NOW, usual_ends={"r1": NOW + seconds("20m")})
    assert usual == {"q": NOW + seconds("20m")}


def test_what_waits_before_it_is_expected_to_last_as_long_as_such_work_usually_does():
    running = [holds("r1", "a", "t4", 4, since="30m", max_duration="40m")]
    queued = [ask("q1", "a", "t4", 4, waited="2m", max_duration="5h"), ask("q2", "a", "t4", 4)]
    assert minutes_until(RULES, queued, running) == {"q1": 10, "q2": 310}
    usual = forecast(RULES, state(queued, running), NOW, usual_lengths={"q1": seconds("20m")})
    assert usual == {"q1": NOW + seconds("10m"), "q2": NOW + seconds("30m")}


def test_a_usual_end_that_is_past_says_nothing():
    running = [holds("r1", "a", "t4", 4, since="30m", max_duration="1h")]
    queued = [ask("q", "a", "t4", 4)]
    late = forecast(RULES, state(queued, running), NOW, usual_ends={"r1": NOW - 60})
    assert late == {"q": NOW + seconds("30m")}


def test_what_waits_for_a_window_starts_when_it_is_over():
    window = {
        "team": "b",
        "pool": "t4",
        "gpus": 4,
        "from": "2027-01-15T07:00:00Z",
        "until": "2027-01-15T09:00:00Z",
    }
    rules = policy({"t4": 4}, {"a": {"quota": {"t4": 4}}, "b": {}}, windows=[window])
    assert minutes_until(rules, [ask("q", "a", "t4", 1)]) == {"q": 60}
