"""Two requests side by side: who comes first, point by point, and which point settles it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import RenderableType

from dagster_gpufair.cli.output.tables import Column, clock, number, sentence, table
from dagster_gpufair.scheduling.explain import Comparison, Row

_ONLY_IF_DECISIVE = ("saturation", "inside", "submitted", "id")
_ONLY_IF_ANY = ("preempted", "deadline", "source")
_RATIOS = ("saturation", "inside")
_MOST_DECIMALS = 3

_RULES = {
    "class": "The class decides before any points: urgent, then guaranteed, then guaranteed by its "
    "team, then borrowing.",
    "saturation": "Both borrow: whose team has less above its quota, for its weight, comes first.",
    "inside": "Both borrow for one team: whose project has less above its quota, for its weight, comes "
    "first.",
    "sum": "They are of the same class: more points come first.",
    "submitted": "They have the same points: the earlier submission comes first.",
    "id": "They are alike in everything: the order of their ids decides.",
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


def comparison_json(comparison: Comparison) -> dict[str, Any]:
    """All of it, for programs."""
    return {
        "first": comparison.first.id,
        "second": comparison.second.id,
        "comes_first": comparison.comes_first,
        "decided_by": comparison.decided_by,
        "rows": [row._asdict() for row in comparison.rows],
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
