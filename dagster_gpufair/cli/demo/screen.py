"""The queue as it changes: redrawn in a terminal, line by line elsewhere."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from dagster_gpufair.cli.demo.watch import Sight
from dagster_gpufair.cli.moment.current import SHORT, Moment, Waiter
from dagster_gpufair.cli.output.tables import Column, headline, table, under
from dagster_gpufair.cli.output.text import plain
from dagster_gpufair.cli.output.times import age, clock
from dagster_gpufair.cli.queue.brief_reason import brief_reason
from dagster_gpufair.policy.quantities import format_gpus

_NEWS = 6
_AROUND = 8
"""Lines of the screen that are neither a pool's nor news."""
_WIDE = 150
"""Columns from which on sentences stay on a line or two."""
_NARROW = 100
"""Columns below which there is no room for tiers."""
_TIER = Column("tier")
_WAITING = (
    Column("#", right=True),
    Column("run"),
    Column("team"),
    Column("job"),
    _TIER,
    Column("asks", right=True),
    Column("since", right=True),
    Column("why it waits"),
)


class Screen:
    """Shows one `Sight` after the other. Left, it leaves the terminal as it was."""

    def __init__(self, footer: str):
        self._footer = footer
        self._console = Console(highlight=False, markup=False, emoji=False)
        self._news: deque[str] = deque(maxlen=_NEWS)
        self._live: Live | None = None
        self._said: str | None = None
        self._reasons: dict[str, str] = {}

    def __enter__(self) -> Screen:
        if self._console.is_terminal:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def tell(self, line: str) -> None:
        """Something that happened."""
        self._news.append(line)
        if self._live is None:
            click.echo(line)

    def show(self, sight: Sight) -> None:
        """What is so now."""
        for line in sight.news:
            self.tell(line)
        if self._live is not None:
            self._live.update(self._drawn(sight), refresh=True)
        elif sight.moment is not None:
            for line in self._new_reasons(sight, sight.moment):
                click.echo(line)
            now = "; ".join(pool_line(sight.moment, pool) for pool in sight.moment.policy.pools)
            if sight.news and now != self._said:
                click.echo(f"          {now}")
                self._said = now

    def _new_reasons(self, sight: Sight, moment: Moment) -> Iterator[str]:
        """Why runs wait that did not wait for this reason before, in one line for all that are alike."""
        waiters = [waiter for line in moment.lines.values() for waiter in line if waiter.reason]
        alike: dict[tuple[str, str], list[str]] = {}
        for waiter in waiters:
            id_ = waiter.request.id
            if self._reasons.get(id_) != waiter.reason:
                alike.setdefault((sight.job(id_), brief_reason(moment, waiter)), []).append(id_)
        self._reasons = {waiter.request.id: waiter.reason or "" for waiter in waiters}
        at = clock(moment.now, moment.now, seconds=True)
        for (job, why), ids in alike.items():
            runs = f"{len(ids)} runs of {job}" if job else f"{len(ids)} runs"
            said = f"{sight.name(ids[0])} waits" if len(ids) == 1 else f"{runs} wait"
            yield f"{at}  {said}: {why}"

    def _drawn(self, sight: Sight) -> RenderableType:
        parts: list[RenderableType] = []
        if sight.moment is not None:
            pools = list(sight.moment.policy.pools)
            rows = max(2, (self._console.height - _AROUND - _NEWS) // max(1, len(pools)) - 4)
            for pool in pools:
                parts += [headline(pool_line(sight.moment, pool)), *_teams(sight.moment, pool)]
                parts += [under(part) for part in _line(sight, pool, rows, self._console.width)]
                parts.append(Text(""))
        parts += [Text(line, style="dim", no_wrap=True, overflow="ellipsis") for line in self._news]
        done = f"{sight.ended} of {sight.expected} runs have ended · {self._footer}"
        return Group(*parts, Text(""), Text(done, style="bold"))


def pool_line(moment: Moment, pool: str) -> str:
    """``h100 · 16 GPUs · 14 in use (8 borrowed) · 2 free · 6 waiting``."""
    capacity = moment.policy.pools[pool].capacity
    in_use = sum(lease.gpus for lease in moment.leases if lease.pool == pool)
    borrowed = moment.borrowed_in(pool)
    lent = f" ({format_gpus(borrowed)} borrowed)" if borrowed else ""
    waiting = len(moment.lines.get(pool, ()))
    return (
        f"{pool} · {format_gpus(capacity)} GPUs · {format_gpus(in_use)} in use{lent} · "
        f"{format_gpus(max(0, capacity - in_use))} free · {waiting} waiting"
    )


def _teams(moment: Moment, pool: str) -> Sequence[RenderableType]:
    parts = []
    for name, team in moment.policy.teams.items():
        use = sum(lease.gpus for lease in moment.leases if (lease.team, lease.pool) == (name, pool))
        quota = team.quota.get(pool, 0)
        if use or quota:
            parts.append(f"{plain(name)} {format_gpus(use)} of its quota of {format_gpus(quota)}")
    return [Text(f"  {', '.join(parts)}")] if parts else []


def _line(sight: Sight, pool: str, rows: int, width: int) -> Sequence[RenderableType]:
    """Who waits there, the first few; why in words where there is room, and it is not as above."""
    assert sight.moment is not None
    waiters = sight.moment.lines.get(pool, ())
    if not waiters:
        return []
    columns: Sequence[Column] = [*_WAITING[:-1], replace(_WAITING[-1], wraps=width >= _WIDE)]
    shown: list[Sequence[str]] = []
    said = None
    for waiter in waiters[:rows]:
        why = brief_reason(sight.moment, waiter)
        shown.append(_row(sight, waiter, why if width >= _WIDE and why != said else None))
        said = why
    if width < _NARROW:
        at = _WAITING.index(_TIER)
        columns = [*columns[:at], *columns[at + 1 :]]
        shown = [[*row[:at], *row[at + 1 :]] for row in shown]
    more = len(waiters) - len(shown)
    return [table(columns, shown), *([Text(f"and {more} more")] if more else [])]


def _row(sight: Sight, waiter: Waiter, why: str | None) -> Sequence[str]:
    """``why`` is None where the bare reason is to do."""
    assert sight.moment is not None
    request = waiter.request
    record = sight.records.get(request.id)
    return (
        str(waiter.place or ""),
        request.id[:SHORT],
        plain(request.team),
        plain(record.dagster_run.job_name if record else ""),
        plain(request.tier),
        format_gpus(request.gpus),
        age(sight.moment.now - request.submitted),
        why or waiter.reason or "starts on the next pass",
    )
