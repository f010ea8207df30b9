"""Two requests side by side: only what matters to them, and enough decimals to see why."""

from __future__ import annotations

import io

from rich.console import Console

from dagster_gpufair.cli.explain.comparison import comparison_json, side_by_side
from dagster_gpufair.scheduling.explaining.comparison import Comparison, compare
from dagster_gpufair.scheduling.model import Class, Points
from dagster_gpufair.scheduling.order import Standing

NAMES = {"one": "aaaaaaaa", "two": "bbbbbbbb"}


def standing(
    id_: str,
    class_: Class = Class.GUARANTEED,
    saturation: float = 1.0,
    wait: float = 0.0,
    submitted: float = 0.0,
) -> Standing:
    return Standing(class_, saturation, Points(2000, wait, 0, 0, 0, 0, 0), submitted, id_)


def said(comparison: Comparison) -> dict[str, list[str]]:
    """Its lines by their first word."""
    console = Console(file=io.StringIO(), width=200)
    for part in side_by_side(comparison, "why", NAMES, now=0.0):
        console.print(part)
    assert isinstance(console.file, io.StringIO)
    lines = [line.split() for line in console.file.getvalue().splitlines()]
    return {words[0]: words[1:] for words in lines}


def test_a_difference_shows_however_small() -> None:
    lines = said(compare(standing("one", wait=4.04), standing("two", wait=4.0)))
    assert lines["wait"] == ["4.04", "4.00"]
    assert lines["sum"] == ["2,004.04", "2,004.00"]
    assert lines["tier"] == ["2,000", "2,000"]
    assert lines["Both"][-5:] == ["class:", "more", "points", "go", "first."]


def test_only_what_makes_a_difference_is_shown() -> None:
    lines = said(compare(standing("one"), standing("two", Class.BORROWING)))
    assert list(lines) == ["why", "class", "tier", "wait", "share", "sum", "The"]
    assert lines["class"] == ["guaranteed", "borrowing"]


def test_saturation_when_it_decides() -> None:
    one = standing("one", Class.BORROWING, 0.5)
    lines = said(compare(one, standing("two", Class.BORROWING, 0.75)))
    assert lines["saturation"] == ["0.50", "0.75"]
    assert "Both" in lines


def test_submission_and_id_when_they_decide() -> None:
    earlier = said(compare(standing("one", submitted=1.0), standing("two", submitted=62.0)))
    first, _, second, _ = earlier["submitted"]
    assert first < second, "each with its zone"
    alike = said(compare(standing("one"), standing("two")))
    assert alike["id"] == ["aaaaaaaa", "bbbbbbbb"]


def test_all_of_it_for_programs() -> None:
    data = comparison_json(compare(standing("two", wait=1.0), standing("one", wait=2.0)))
    assert (data["first"], data["second"], data["comes_first"]) == ("two", "one", "one")
    assert data["decided_by"] == "sum"
    (submitted,) = (row for row in data["rows"] if row["name"] == "submitted")
    assert submitted["first"] == "1970-01-01T00:00:00.000Z"
    assert data["rows"][0] == {
        "name": "class",
        "first": "guaranteed",
        "second": "guaranteed",
        "note": "",
    }
