"""``gpufair teams``: what each team and project is guaranteed, uses, borrows and lends."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
from rich.console import RenderableType

from dagster_gpufair.cli.instance.opening import opened_ledger
from dagster_gpufair.cli.instance.option import instance_option
from dagster_gpufair.cli.moment.current import read_moment
from dagster_gpufair.cli.moment.header_json import header_json
from dagster_gpufair.cli.moment.warnings import warnings
from dagster_gpufair.cli.output.json_output import json_option, show_json
from dagster_gpufair.cli.output.tables import Column, show, table
from dagster_gpufair.cli.output.text import percent, plain
from dagster_gpufair.cli.output.times import clock
from dagster_gpufair.cli.teams.ceilings import CeilingUse, ceiling_uses
from dagster_gpufair.cli.teams.team_use import TeamUse, team_uses
from dagster_gpufair.policy.quantities import duration_in_words, format_gpus
from dagster_gpufair.scheduling.waiting import words

REST = "(rest)"
"""How the part of a team is named that is none of its projects."""


@click.command()
@instance_option
@json_option
def teams(home: Path | None, as_json: bool) -> None:
    """What each team and project may use, uses and borrows."""
    with opened_ledger(home) as opened, opened.ledger.reading() as session:
        moment = read_moment(opened, session, time.time())
    uses, ceilings = team_uses(moment), ceiling_uses(moment)
    if as_json:
        show_json(
            {
                **header_json(moment),
                "teams": [use.as_json() for use in uses],
                "ceilings": [use.as_json() for use in ceilings],
            }
        )
        return
    columns = (
        Column("team"),
        Column("pool"),
        Column("quota", right=True),
        Column("uses", right=True),
        Column("borrowed", right=True),
        Column("may borrow", right=True, drop=3),
        Column("lends", right=True, drop=5),
        Column("may lend", right=True, drop=6),
        Column("recent borrowing", right=True, drop=2),
        Column("fair share", right=True, drop=1),
        Column("waiting", right=True),
        Column("running", right=True, drop=4),
    )
    half_life = duration_in_words(moment.policy.fair_share.half_life)
    rows = [row for use in uses if use.matters for row in _rows(use)]
    show(
        *warnings(moment),
        f"policy v{moment.version.version}, {clock(moment.now, moment.now, seconds=True)}",
        table(columns, [*rows, *_without_any(uses)]),
        *_ceilings(ceilings),
        "",
        "quota: with grants and windows in force. borrowed: used over the quota; of a project, over its "
        "own. lends: idle GPUs of its quota that others use, split among all teams with idle quota.",
        f"recent borrowing: its share of recently borrowed GPU-hours in the pool (half-life {half_life}). "
        "fair share: what its weight gives it.",
        "`gpufair policy show` says the rules in sentences. --json has all columns.",
    )


def _rows(use: TeamUse) -> Iterator[Sequence[str]]:
    yield (
        plain(use.team),
        plain(use.pool),
        format_gpus(use.quota),
        format_gpus(use.in_use),
        format_gpus(use.borrowed),
        _any(use.may_borrow),
        words.part(use.lends),
        words.part(use.may_lend),
        percent(use.borrowed_share),
        percent(use.weight_share),
        str(use.waiting),
        str(use.running),
    )
    for one in use.projects:
        yield (
            plain(f"  {use.team}/{one.project or REST}"),
            plain(use.pool),
            format_gpus(one.quota),
            format_gpus(one.in_use),
            format_gpus(one.borrowed),
            _any(one.may_borrow),
            *("",) * 6,
        )


def _any(limit: int | None) -> str:
    return "any" if limit is None else format_gpus(limit)


def _without_any(uses: Sequence[TeamUse]) -> list[Sequence[str]]:
    """A row for each team of which there would be none."""
    there = {use.team for use in uses if use.matters}
    missing = dict.fromkeys(use.team for use in uses if use.team not in there)
    return [(plain(team), "-", "0", "0", "0", *("",) * 5, "0", "0") for team in missing]


def _ceilings(uses: Sequence[CeilingUse]) -> Iterator[RenderableType]:
    if uses:
        columns = (Column("ceiling of"), Column("what"), Column("used", right=True), Column("most"))
        yield ""
        yield table(
            columns,
            [(plain(use.team), use.what, f"{use.used:g}", f"{use.most:g}") for use in uses],
        )
