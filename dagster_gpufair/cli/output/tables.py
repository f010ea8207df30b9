"""What people read in a terminal: tables, headlines and sentences that fit its width.

Nothing is ever read as rich's markup. What does not go to a terminal has no colours and no padding, and
one line for each row, unless ``COLUMNS`` says how wide it may be.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import click
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.padding import Padding
from rich.segment import Segment, Segments
from rich.table import Table
from rich.text import Text

LEAST_ROOM = 40
"""Columns that a text needs to stand beside the others; with less it stands below its row."""
_GAP = 2
_LEAST_WIDTH = 8
"""Columns of a cell that has to be folded."""
_WIDTH_ELSEWHERE = 4000
"""Columns where it is no terminal."""

Cell = str | Text


@dataclass(frozen=True)
class Column:
    """A column of a table. Only a last one that ``wraps`` may become narrower than its cells.

    Where the terminal is too narrow, columns with a ``drop`` are left out, the highest first.
    """

    title: str = ""
    right: bool = False
    wraps: bool = False
    drop: int = 0


class _Rows:
    """Rows that are never wider than what they are printed to.

    The least important columns are left out first, and the widest cells folded last. A last column that
    wraps does so beside the others where there is room, else it stands below each row.
    """

    def __init__(self, columns: Sequence[Column], rows: Iterable[Sequence[Cell]]):
        self._columns = columns
        self._rows = [[_text(cell) for cell in row] for row in rows]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        room = options.max_width
        wraps = bool(self._columns) and self._columns[-1].wraps
        fixed = list(range(len(self._columns) - wraps))
        widths = {at: self._widest(at) for at in range(len(self._columns))}
        while _sum(widths, fixed) > room:
            droppable = [at for at in fixed if self._columns[at].drop]
            if not droppable:
                break
            fixed.remove(max(droppable, key=lambda at: self._columns[at].drop))
        left = room - _sum(widths, fixed) - _GAP
        if wraps and left >= min(LEAST_ROOM, widths[len(self._columns) - 1]):
            last = len(self._columns) - 1
            widths[last] = min(left, widths[last])
            yield self._table([*fixed, last], widths, [None, *self._rows])
            return
        folded = _narrowed(widths, fixed, room)
        # What cannot be folded any more is printed past the edge: half a name helps nobody.
        wide = options.update(max_width=max(room, _sum(folded, fixed)))
        if not wraps:
            yield from _lines(console, wide, self._table(fixed, folded, [None, *self._rows]))
            return
        yield from _lines(console, wide, self._table(fixed, folded, [None]))
        for row in self._rows:
            yield from _lines(console, wide, self._table(fixed, folded, [row]))
            if row[-1].plain:
                yield Padding(row[-1], (0, 0, 0, 4))

    def _widest(self, at: int) -> int:
        return max(cell_len(self._columns[at].title), *(row[at].cell_len for row in self._rows), 0)

    def _table(
        self, shown: Sequence[int], widths: dict[int, int], rows: Sequence[Sequence[Text] | None]
    ) -> Table:
        """``None`` stands for the titles."""
        made = Table.grid(padding=(0, _GAP, 0, 0))
        for at in shown:
            column = self._columns[at]
            made.add_column(
                width=widths[at], justify="right" if column.right else "left", overflow="fold"
            )
        for row in rows:
            if row is None:
                made.add_row(*(Text(self._columns[at].title, style="bold") for at in shown))
            else:
                made.add_row(*(row[at] for at in shown))
        return made


def table(columns: Sequence[Column], rows: Iterable[Sequence[Cell]]) -> RenderableType:
    """A table without lines around it."""
    return _Rows(columns, rows)


def headline(text: str) -> RenderableType:
    """A line that others belong under."""
    return Text(text, style="bold")


def warning(text: str) -> RenderableType:
    """Something that a person should look at."""
    return Text(text, style="yellow")


def alarm(text: str) -> RenderableType:
    """Something that keeps the queue from working until a person acts."""
    return Text(text, style="red")


def under(part: RenderableType) -> RenderableType:
    """The same, set in."""
    return Padding(part, (0, 0, 0, 2))


def new_console() -> Console:
    """Standard output, as wide as it is: where it is no terminal, as wide as a line may get."""
    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal and not os.environ.get("COLUMNS", "").isdigit():
        console.width = _WIDTH_ELSEWHERE
    return console


def rendered(*parts: RenderableType) -> str:
    """These as they would be printed, one under the other."""
    console = new_console()
    with console.capture() as printed:
        for part in parts:
            console.print(part, crop=False)
    text = printed.get()
    if not console.is_terminal:
        text = "\n".join(line.rstrip() for line in text.split("\n"))
    return text


def show(*parts: RenderableType) -> None:
    """Print these, one under the other."""
    click.echo(rendered(*parts), nl=False, color=new_console().is_terminal)


def _lines(console: Console, options: ConsoleOptions, part: Table) -> Iterator[RenderableType]:
    for line in console.render_lines(part, options, pad=False):
        yield Segments([*line, Segment.line()])


def _text(cell: Cell) -> Text:
    return cell if isinstance(cell, Text) else Text(cell)


def _sum(widths: dict[int, int], shown: Sequence[int]) -> int:
    return sum(widths[at] for at in shown) + _GAP * max(0, len(shown) - 1)


def _narrowed(widths: dict[int, int], shown: Sequence[int], room: int) -> dict[int, int]:
    """Widths with which all fits, taken from the widest first."""
    narrowed = dict(widths)
    for at in _widest_first(widths, shown):
        too_much = _sum(narrowed, shown) - room
        if too_much <= 0:
            break
        narrowed[at] = max(min(_LEAST_WIDTH, narrowed[at]), narrowed[at] - too_much)
    return narrowed


def _widest_first(widths: dict[int, int], shown: Sequence[int]) -> Iterator[int]:
    yield from sorted(shown, key=lambda at: -widths[at])
