"""Two requests side by side: which goes first, point by point, and which point decides."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import RenderableType

from dagster_gpufair.cli.output.json_output import iso
from dagster_gpufair.cli.output.tables import Column, table
from dagster_gpufair.cli.output.text import number, sentence
from dagster_gpufair.cli.output.times import clock
from dagster_gpufair.scheduling.explaining.comparison import Comparison, Row

_ONLY_IF_DECISIVE = ("saturation", "inside", "submitted", "id")
_ONLY_IF_ANY = ("preempted", "deadline", "priority", "source")
_RATIOS = ("saturation", "inside")
_MOST_DECIMALS = 3

_RULES = {
    "class": "The class decides before points do: urgent, then guaranteed, then guaranteed by its team, "
    "then borrowing.",
    "saturation": "Both borrow: the team that has borrowed less for its weight goes first.",
    "inside": "Both borrow for one team: the project that has borrowed less for its weight goes first.",
    "sum": "Both are of the same class: more points go first.",
    "submitted": "Both have the same points: the earlier submission goes first.",
    "id": "Both are alike in everything: the order of their ids decides.",
}


def side_by_side(
    comparison: Comparison, title: str, names: Mapping[str, str], now: float
) -> Sequence[RenderableType]:
    """The comparison as a table under a title, and the rule that settles it."""
    first, second = names[comparison.first.id], names[comparison.second.id]
    columns = [
        Column(title),
        Column(first, right=True),
        Column(second, right=True),
        Column(wraps=True),
    ]
    rows = [
        (f"  {row.name}", *_cells(row, names, now), sentence(row.note))
        for row in _shown(comparison)
    ]
    return table(columns, rows), _RULES[comparison.decided_by]


def _row_json(row: Row) -> dict[str, Any]:
    if row.name != "submitted":
        return row._asdict()
    first, second = (None if isinstance(at, str) else iso(at) for at in (row.first, row.second))
    return {**row._asdict(), "first": first, "second": second}


def comparison_json(comparison: Comparison) -> dict[str, Any]:
    """All of it, for programs."""
    return {
        "first": comparison.first.id,
        "second": comparison.second.id,
        "comes_first": comparison.comes_first,
        "decided_by": comparison.decided_by,
        "rows": [_row_json(row) for row in comparison.rows],
    }


def _shown(comparison: Comparison) -> Iterator[Row]:
    """Without the rows that make no difference to these two."""
    for row in comparison.rows:
        if row.name in _ONLY_IF_DECISIVE and row.name != comparison.decided_by:
            continue
        if row.name in _ONLY_IF_ANY and not row.first and not row.second:
            continue
        yield row


def _cells(row: Row, names: Mapping[str, str], now: float) -> tuple[str, str]:
    first, second = row.first, row.second
    if isinstance(first, str) or isinstance(second, str):
        return names.get(str(first), str(first)), names.get(str(second), str(second))
    if row.name == "submitted":
        return clock(first, now, seconds=True), clock(second, now, seconds=True)
    decimals = _decimals(first, second, 2 if row.name in _RATIOS else 0)
    return number(first, decimals), number(second, decimals)


def _decimals(first: float, second: float, least: int) -> int:
    """So many that a difference shows."""
    if first == second:
        return least
    enough = (
        decimals
        for decimals in range(least, _MOST_DECIMALS)
        if number(first, decimals) != number(second, decimals)
    )
    return next(enough, _MOST_DECIMALS)
