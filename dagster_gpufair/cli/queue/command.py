"""``gpufair queue``: what waits in each pool, in what order, why, and when it starts."""

from __future__ import annotations

import time
from pathlib import Path

import click

from dagster_gpufair.cli.instance.opening import OpenLedger, opened_ledger
from dagster_gpufair.cli.instance.option import instance_option
from dagster_gpufair.cli.moment.current import read_moment
from dagster_gpufair.cli.moment.launched_by import this_user
from dagster_gpufair.cli.output.json_output import json_option, show_json
from dagster_gpufair.cli.output.tables import show
from dagster_gpufair.cli.queue.redraw import keep_showing
from dagster_gpufair.cli.queue.sections import ROWS, Shown
from dagster_gpufair.cli.queue.selection import Selection
from dagster_gpufair.ledger import requests

_EVERY = 3.0
"""Seconds between two looks of ``--watch``."""


@click.command()
@click.option("--pool", help="Only this pool.")
@click.option("--team", help="Only this team's runs; places stay those of the whole line.")
@click.option(
    "--mine",
    is_flag=True,
    help="Only runs whose tag `user` is your name, those of your backfills too "
    "[your name: GPUFAIR_USER, else the user of this machine].",
)
@click.option(
    "--all", "everything", is_flag=True, help=f"Every run, not just {ROWS} a pool, and what runs."
)
@click.option("--watch", is_flag=True, help="Show it again as it changes, until Ctrl-C.")
@instance_option
@json_option
def queue(
    pool: str | None,
    team: str | None,
    mine: bool,
    everything: bool,
    watch: bool,
    home: Path | None,
    as_json: bool,
) -> None:
    """What waits, why, and when it starts.

    JSON always has every run, and what runs.
    """
    if watch and as_json:
        raise click.UsageError("--watch and --json exclude each other.")
    selection = Selection(pool, team, _me() if mine else None)
    with opened_ledger(home) as opened:
        if watch:
            keep_showing(
                lambda: _look(opened, selection),
                lambda: time.sleep(_EVERY),
                everything=everything,
                with_running=everything,
            )
            return
        shown = _look(opened, selection)
    if as_json:
        show_json(shown.as_json())
    else:
        show(*shown.parts(None if everything else ROWS, with_running=everything))


def _look(opened: OpenLedger, selection: Selection) -> Shown:
    with opened.ledger.reading() as session:
        moment = read_moment(opened, session, time.time())
        uses = selection.pools(moment)
        waiting = selection.waiting(moment, uses)
        running = selection.running(moment, uses)
        ids = [waiter.request.id for line in waiting.values() for waiter in line]
        ids += [lease.request_id for leases in running.values() for lease in leases]
        records = {
            id_: record
            for id_, record in requests.by_ids(session, ids).items()
            if selection.includes(record)
        }
    return Shown(
        moment,
        uses,
        {
            name: [each for each in line if each.request.id in records]
            for name, line in waiting.items()
        },
        {
            name: [each for each in held if each.request_id in records]
            for name, held in running.items()
        },
        records,
        selection.user,
    )


def _me() -> str:
    user = this_user()
    if user is None:
        raise click.ClickException("This machine does not say who you are: set GPUFAIR_USER.")
    return user
