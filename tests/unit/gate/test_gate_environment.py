"""Pauses for code locations that cannot be reached, and the sentences that say so."""

from __future__ import annotations

from dagster_gpufair.gate.queue.environment import LONGEST_PAUSE, Environment, first_line


def said(environment: Environment, now: float) -> dict[str, str]:
    return environment.broken(now, {}, {}, clock=lambda at: f"{at:.0f}")


def test_pauses_double_up_to_the_longest() -> None:
    environment = Environment()
    now, pauses = 0.0, []
    for _ in range(8):
        pauses.append(environment.failed("nlp", "refused", now, first_pause=10.0))
        now += pauses[-1]

    assert pauses == [10, 20, 40, 80, 160, 320, 640, LONGEST_PAUSE]


def test_several_failures_of_one_moment_are_one() -> None:
    environment = Environment()
    environment.failed("nlp", "refused", 0.0, first_pause=10.0)

    assert environment.failed("nlp", "refused", 1.0, first_pause=10.0) == 10.0
    assert "nlp" in said(environment, 9.9)
    assert said(environment, 10.0) == {}


def test_once_reached_it_begins_anew() -> None:
    environment = Environment()
    environment.failed("nlp", "refused", 0.0, first_pause=10.0)
    environment.failed("nlp", "refused", 10.0, first_pause=10.0)
    environment.reached("nlp")

    assert said(environment, 11.0) == {}
    assert environment.failed("nlp", "refused", 12.0, first_pause=10.0) == 10.0


def test_one_location_does_not_pause_another() -> None:
    environment = Environment()
    environment.failed("nlp", "refused", 0.0, first_pause=10.0)
    environment.reached("vision")

    assert said(environment, 1.0) == {
        "nlp": "Code location 'nlp' could not be reached (refused). Tried again at 10."
    }


def test_what_else_is_broken() -> None:
    why = Environment().broken(
        0.0, {"nlp": "\nNo module named 'x'\n..."}, {"vision": 4}, clock=lambda at: str(at)
    )

    assert why == {
        "nlp": "Code location 'nlp' cannot be loaded (No module named 'x'). "
        "It starts once that is mended.",
        "vision": "4 launches into code location 'vision' hang; no more are tried until one returns.",
    }


def test_the_first_line_of_an_error() -> None:
    assert first_line("  one\ntwo") == "one"
    assert first_line(KeyError()) == "KeyError"
    assert len(first_line("x" * 10_000)) == 300
