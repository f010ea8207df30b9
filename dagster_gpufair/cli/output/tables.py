"""What people read in a terminal: tables and sentences, amounts and times, and no text that acts.

Names and messages come from tags, jobs and errors that anybody may have written. `plain` shows what in
them would act on a terminal; nothing is ever read as rich's markup. What does not go to a terminal has
no colours, no padding, and one line for each row.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import click
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.segment import Segment, Segments
from rich.table import Table
from rich.text import Text

from dagster_gpufair.policy.quantities import format_duration

LONGEST_NAME = 48
LONGEST_SENTENCE = 2000
"""Characters; what is longer is cut, so that one text does not hide all others."""
_LEAST_ROOM = 40
_FIRST_WORDS = frozenset(
    ("a", "an", "asset", "assets", "it", "no", "team", "the", "these", "this", "tier", "unknown")
)
"""Words that messages begin with. Others may be names, which are told as they are written."""
_WIDTH_ELSEWHERE = 4000
"""Columns: what a text needs that is told in a table, and what there are where it is no terminal."""


@dataclass(frozen=True)
class Column:
    """A column of a table. Only one that ``wraps`` may become narrower than its cells."""

    title: str = ""
    right: bool = False
    wraps: bool = False


def plain(text: str, longest: int = LONGEST_NAME) -> str:
    """The text on one line, with everything that is not printable as its escape: ``\\x1b``, ``\\n``."""
    escaped = "".join(
        sign if sign.isprintable() else sign.encode("unicode_escape").decode()
        for sign in text[: longest + 1]
    )
    return escaped if len(escaped) <= longest else f"{escaped[: longest - 1]}…"


def sentence(text: str) -> str:
    """A message as `plain` text, cut only where no message ever ends."""
    return plain(text, LONGEST_SENTENCE)


def whole_sentence(text: str) -> str:
    """The same with a capital, unless it begins with a name, and a period at its end."""
    first = text.partition(" ")[0]
    if first in _FIRST_WORDS:
        text = text[:1].upper() + text[1:]
    if text and text[-1] not in ".!?":
        text += "."
    return sentence(text).replace(". the rest of ", ". The rest of ")


def number(value: float, decimals: int = 0) -> str:
    """``3568.2`` → ``3,568``."""
    return f"{value:,.{decimals}f}"


def percent(part: float) -> str:
    """``0.333`` → ``33 %``."""
    return f"{part:.0%}".replace("%", " %")


def age(seconds: float) -> str:
    """``41m``, ``1h12m``, ``3d4h``; below a minute ``42s``."""
    whole = max(0, int(seconds))
    return format_duration(whole if whole < 60 else whole // 60 * 60)


def clock(at: float, now: float, seconds: bool = False) -> str:
    """A time of day in the local zone, with the day where it is not the day of ``now``."""
    when = time.localtime(at)
    day = "" if when[:3] == time.localtime(now)[:3] else "%Y-%m-%d "
    return time.strftime(f"{day}%H:%M:%S" if seconds else f"{day}%H:%M", when)


def counted(count: int, what: str) -> str:
    """``1 run``, ``3 runs``."""
    return f"{count} {what}{'' if count == 1 else 's'}"


class _Rows:
    """Rows in columns of which none is ever cut.

    A last column that wraps does so beside the others where there is room, else it is told below
    each row.
    """

    def __init__(self, columns: Sequence[Column], rows: Iterable[Sequence[str]]):
        self._columns = columns
        self._rows = list(rows)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        told_below = self._columns[-1].wraps
        fixed = self._table(self._columns[:-1] if told_below else self._columns)
        needed = Measurement.get(console, options.update(max_width=_WIDTH_ELSEWHERE), fixed).maximum
        if told_below and options.max_width - needed >= _LEAST_ROOM:
            yield self._table(self._columns)
            return
        lines = console.render_lines(fixed, options.update(width=needed), pad=False)
        for line, row in zip(lines, [(), *self._rows], strict=True):
            yield Segments([*line, Segment.line()])
            if told_below and row and row[-1]:
                yield Padding(Text(row[-1]), (0, 0, 0, 4))

    def _table(self, columns: Sequence[Column]) -> Table:
        made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        for column in columns:
            made.add_column(
                Text(column.title),
                justify="right" if column.right else "left",
                no_wrap=not column.wraps,
                overflow="fold",
            )
        for row in self._rows:
            made.add_row(*(Text(cell) for cell in row[: len(columns)]))
        return made


def table(columns: Sequence[Column], rows: Iterable[Sequence[str]]) -> RenderableType:
    """A table without lines around it."""
    return _Rows(columns, rows)


def headline(text: str) -> RenderableType:
    """A line that others belong under."""
    return Text(text, style="bold")


def warning(text: str) -> RenderableType:
    """Something that is not as it should be."""
    return Text(text, style="yellow")


def under(part: RenderableType) -> RenderableType:
    """The same, set in."""
    return Padding(part, (0, 0, 0, 2))


def show(*parts: RenderableType) -> None:
    """Print these, one under the other."""
    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = _WIDTH_ELSEWHERE
    with console.capture() as printed:
        for part in parts:
            console.print(part, crop=False)
    text = printed.get()
    if not console.is_terminal:
        text = "\n".join(line.rstrip() for line in text.split("\n"))
    click.echo(text, nl=False, color=console.is_terminal)
