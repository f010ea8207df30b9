"""Why one request comes before another, in named points."""

from __future__ import annotations

from scheduling_builder import NOW, ask, decide, holds, policy, state

from dagster_gpufair.scheduling.explaining.comparison import compare, explain
from dagster_gpufair.scheduling.order import Standing

RULES = policy({"h100": 16}, {"nlp": {"quota": {"h100": 8}}, "vision": {"quota": {"h100": 4}}})
RUNNING = [holds("r1", "vision", "h100", 4), holds("r2", "nlp", "h100", 2)]


def test_the_class_decides_before_any_points():
    first = ask("q1", "nlp", "h100", 4, waited="30m")
    second = ask("q2", "vision", "h100", 4, waited="5h")
    used = {"vision": {"h100": 10}, "nlp": {"h100": 10}}
    result = explain(RULES, state([first, second], RUNNING, used=used), NOW, "h100", first, second)
    assert result.decided_by == "class"
    assert result.comes_first == "q1"
    rows = {row.name: row for row in result.rows}
    assert (rows["class"].first, rows["class"].second) == ("guaranteed", "borrowing")
    assert rows["class"].note == "nlp uses 2 of its quota of 8; vision uses 4 of its quota of 4"
    assert (rows["wait"].first, rows["wait"].second) == (50, 500)
    assert rows["wait"].note == "100 points an hour"
    assert rows["share"].note == (
        "nlp has 50 % of recent borrowing and a fair share of 50 %; "
        "vision has 50 % of recent borrowing and a fair share of 50 %"
    )
    assert rows["sum"].first == sum(result.first.points)


def test_rows_stand_in_the_order_people_read_them():
    first, second = ask("q1", "nlp", "h100", 1), ask("q2", "nlp", "h100", 1)
    result = explain(RULES, state([first, second]), NOW, "h100", first, second)
    assert [row.name for row in result.rows] == [
        "class", "saturation", "tier", "wait", "share", "preempted", "deadline",
        "priority", "source", "sum",
        "submitted", "id",
    ]  # fmt: skip
    assert (result.decided_by, result.comes_first) == ("id", "q1")


def test_between_borrowers_the_saturation_decides():
    first = ask("q1", "vision", "h100", 4, waited="0s")
    second = ask("q2", "nlp", "h100", 7, waited="9h")
    running = [*RUNNING, holds("r3", "nlp", "h100", 7)]
    result = explain(RULES, state([first, second], running), NOW, "h100", first, second)
    assert (result.decided_by, result.comes_first) == ("saturation", "q1")


def test_a_recorded_start_is_compared_with_what_waits_now():
    start = decide(RULES, [ask("q1", "nlp", "h100", 4, waited="2h")]).start("q1")
    recorded = Standing(
        start.class_, start.saturation, start.points, start.request.submitted, start.request.id
    )
    later = recorded._replace(id="q2", submitted=recorded.submitted + 60)
    assert compare(later, recorded).decided_by == "submitted"
    assert compare(later, recorded).comes_first == "q1"
