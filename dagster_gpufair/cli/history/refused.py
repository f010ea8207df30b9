"""``gpufair refused``: the runs that were refused last, and why."""

from __future__ import annotations

import time
from pathlib import Path

import click

from dagster_gpufair.cli.instance.opening import opened_ledger
from dagster_gpufair.cli.instance.option import instance_option
from dagster_gpufair.cli.moment.current import short_ids
from dagster_gpufair.cli.moment.launched_by import launched_by
from dagster_gpufair.cli.moment.request_words import account
from dagster_gpufair.cli.output.json_output import gpus, iso, json_option, show_json
from dagster_gpufair.cli.output.tables import Column, show, table
from dagster_gpufair.cli.output.text import plain, whole_sentence
from dagster_gpufair.cli.output.times import clock
from dagster_gpufair.ledger import history

_COLUMNS = (
    Column("refused"),
    Column("run"),
    Column("team"),
    Column("job"),
    Column("launched by", drop=1),
    Column("why", wraps=True),
)


@click.command()
@click.option("--team", help="Only this team's runs.")
@click.option(
    "--limit",
    type=click.IntRange(1, 10_000),
    default=20,
    show_default=True,
    help="At most so many, the newest first.",
)
@instance_option
@json_option
def refused(team: str | None, limit: int, home: Path | None, as_json: bool) -> None:
    """Runs that were refused, the newest first, and why."""
    now = time.time()
    with opened_ledger(home) as opened, opened.ledger.reading() as session:
        found = history.refused(session, limit, team)
    if as_json:
        show_json(
            {
                "refused": [
                    {
                        "run": each.run_id,
                        "job": each.job_name,
                        "location": each.location,
                        "launched_by": launched_by(each).as_json(),
                        "team": each.team or None,
                        "project": each.project,
                        "tier": each.tier or None,
                        "pools": list(each.pools),
                        "gpus": gpus(each.gpus or None),
                        "submitted": iso(each.submitted_at),
                        "at": iso(each.finished_at),
                        "code": each.refusal_code,
                        "message": each.refusal_message,
                    }
                    for each in found
                ]
            }
        )
        return
    if not found:
        whose = f" of team {plain(team)}" if team is not None else ""
        show(f"No run{whose} was refused. `gpufair queue` shows those that wait.")
        return
    names = short_ids(each.run_id for each in found)
    rows = [
        (
            clock(each.finished_at or each.submitted_at, now),
            names[each.run_id],
            account(each) or "?",
            plain(each.job_name),
            launched_by(each).words(),
            f"{plain(each.refusal_code or '')}: {whole_sentence(each.refusal_message or '')}",
        )
        for each in found
    ]
    show(
        table(_COLUMNS, rows),
        "",
        f"`gpufair history {names[found[0].run_id]}` says all that happened to a run.",
    )
