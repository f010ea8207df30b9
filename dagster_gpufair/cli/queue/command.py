"""``gpufair queue``: what waits in each pool, in what order, why, and about until when."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import click
from rich.console import RenderableType

from dagster_gpufair.cli.instance.opening import instance_option, opened
from dagster_gpufair.cli.moment.current import Daemon, Moment, Waiter, read_moment
from dagster_gpufair.cli.moment.request_words import account, asked, waiter_json
from dagster_gpufair.cli.moment.reservations import kept_for, reservation_json
from dagster_gpufair.cli.output.json_output import gpus, iso, json_option, show_json
from dagster_gpufair.cli.output.tables import (
    Column,
    age,
    clock,
    headline,
    number,
    plain,
    sentence,
    show,
    table,
    under,
    warning,
)
from dagster_gpufair.cli.pools.command import PoolUse, pool_uses
from dagster_gpufair.cli.queue.brief_reason import briefly
from dagster_gpufair.ledger import requests
from dagster_gpufair.ledger.connect import ledger_of
from dagster_gpufair.ledger.requests import RequestRecord
from dagster_gpufair.policy.problems import unknown
from dagster_gpufair.policy.quantities import format_gpus
from dagster_gpufair.scheduling import wording

ROWS = 20
"""Of each pool, unless all are asked for."""

_COLUMNS = (
    Column("#", right=True),
    Column("run"),
    Column("team"),
    Column("tier"),
    Column("asks", right=True),
    Column("since", right=True),
    Column("class"),
    Column("points", right=True),
    Column("starts"),
    Column("why it waits", wraps=True),
)


@click.command()
@click.option("--pool", help="Only this pool.")
@click.option("--team", help="Only this team's runs; places stay those of the whole line.")
@click.option("--all", "everything", is_flag=True, help=f"Every run, not just {ROWS} a pool.")
@instance_option
@json_option
def queue(
    pool: str | None, team: str | None, everything: bool, home: Path | None, as_json: bool
) -> None:
    """What waits, why, and about when it starts.

    JSON always has every run.
    """
    with opened(home) as instance, ledger_of(instance).reading() as session:
        moment = read_moment(instance, session, time.time())
        uses = _chosen(moment, pool, team)
        lines = {use.name: _of_team(moment.lines.get(use.name, ()), team) for use in uses}
        ids = [waiter.request.id for line in lines.values() for waiter in line]
        records = requests.by_ids(session, ids) if as_json else {}
    if as_json:
        show_json(_as_json(moment, uses, lines, records))
        return
    show(
        *warnings(moment),
        *_ungated(moment),
        *_parts(moment, uses, lines, None if everything else ROWS),
    )


def warnings(moment: Moment) -> Iterator[RenderableType]:
    """What keeps the queue from being as it should: a daemon that does not pass, a broken file."""
    if moment.daemon.overdue:
        yield warning(_silent(moment.daemon, moment.now))
    if moment.file_trouble:
        yield warning(
            f"{sentence(str(moment.file_trouble['summary']))}: it changes nothing, and policy "
            f"v{moment.version.version} stays in force. `gpufair policy show` says more."
        )


def _ungated(moment: Moment) -> Iterator[RenderableType]:
    leases = [lease for lease in moment.leases if lease.ungated]
    for lease in leases[:ROWS]:
        yield warning(
            f"Run {plain(lease.run_id)} of team {plain(lease.team)} uses "
            f"{format_gpus(lease.gpus)} × {plain(lease.pool)} without a grant since "
            f"{clock(lease.started_at, moment.now)}: this queue did not start it. "
            "Its GPUs count until it ends."
        )
    if len(leases) > ROWS:
        yield warning(f"and {len(leases) - ROWS} more without a grant")


def _silent(daemon: Daemon, now: float) -> str:
    if daemon.last_pass is None:
        said = "No queue daemon has passed on this instance yet"
    else:
        where = f" on {plain(daemon.host)}" if daemon.host else ""
        said = (
            f"The queue daemon{where} last passed {age(now - daemon.last_pass)} ago, at "
            f"{clock(daemon.last_pass, now, seconds=True)}"
        )
    return (
        f"{said}: nothing starts until it does. Is `dagster dev` or `dagster-daemon run` running?"
    )


def _chosen(moment: Moment, pool: str | None, team: str | None) -> Sequence[PoolUse]:
    uses = pool_uses(moment)
    names = [use.name for use in uses]
    if pool is not None and pool not in names:
        raise click.ClickException(sentence(f"{unknown('pool', pool, names)}."))
    teams = {
        *moment.policy.teams,
        *(request.team for request in moment.state.requests),
        *(lease.team for lease in moment.leases),
    }
    if team is not None and team not in teams:
        raise click.ClickException(sentence(f"{unknown('team', team, sorted(teams))}."))
    return [use for use in uses if pool in (None, use.name)]


def _of_team(line: Sequence[Waiter], team: str | None) -> Sequence[Waiter]:
    return [waiter for waiter in line if team in (None, waiter.request.team)]


def _parts(
    moment: Moment,
    uses: Sequence[PoolUse],
    lines: Mapping[str, Sequence[Waiter]],
    most: int | None,
) -> Iterator[RenderableType]:
    for use in uses:
        line = lines[use.name]
        yield headline(_headline(moment, use))
        if line:
            yield table(_COLUMNS, _rows(moment, line[:most]))
        if most is not None and len(line) > most:
            yield under(f"and {len(line) - most} more; --all shows them")
        for one in use.reservations:
            yield under(f"kept {kept_for(one, moment.names, moment.now)}")
        yield ""
    first = next((waiter for line in lines.values() for waiter in line), None)
    if first is None:
        yield "Nothing waits here. `gpufair pools` shows the GPUs, `gpufair teams` who uses them."
    else:
        yield f"`gpufair explain {moment.names[first.request.id]}` says more of a run."


def _headline(moment: Moment, use: PoolUse) -> str:
    gpus_ = f"{format_gpus(use.gpus)} GPUs" if use.gpus else "not in the policy"
    away = format_gpus(use.gpus - use.ready)
    parts = [
        plain(use.name),
        gpus_ + (f" ({away} in maintenance)" if use.ready < use.gpus else ""),
        f"{format_gpus(use.in_use)} in use{_of_them(use)}",
        f"{format_gpus(use.free)} free"
        + (f" ({wording.part(use.held_back)} held back)" if use.held_back else ""),
        f"{use.waiting} waiting",
    ]
    time_ = clock(moment.now, moment.now, seconds=True)
    return f"{' · '.join(parts)}    policy v{moment.version.version}, {time_}"


def _of_them(use: PoolUse) -> str:
    """`` (5 of them in maintenance, 3 borrowed)``, of those in use."""
    parts = []
    if use.in_maintenance:
        parts.append(f"{format_gpus(use.in_maintenance)} of them in maintenance")
    if use.borrowed:
        parts.append(f"{format_gpus(use.borrowed)} borrowed")
    return f" ({', '.join(parts)})" if parts else ""


def _rows(moment: Moment, line: Iterable[Waiter]) -> Iterator[Sequence[str]]:
    for why, alike in groupby(line, key=lambda waiter: briefly(moment, waiter)):
        for at, waiter in enumerate(alike):
            request = waiter.request
            yield (
                str(waiter.place or "-"),
                moment.names[request.id],
                account(request),
                plain(request.tier),
                asked(request),
                age(moment.now - request.submitted),
                waiter.class_.words,
                number(waiter.points.score),
                moment.expected(request.id).words(moment.now),
                why if at == 0 else f"{waiter.reason or 'starts'}, as above",
            )


def _as_json(
    moment: Moment,
    uses: Sequence[PoolUse],
    lines: Mapping[str, Sequence[Waiter]],
    records: Mapping[str, RequestRecord],
) -> dict[str, Any]:
    return {
        "at": iso(moment.now),
        "policy": {
            "version": moment.version.version,
            "since": iso(moment.version.adopted_at),
            "file_trouble": moment.file_trouble and moment.file_trouble["summary"],
        },
        "daemon": {
            "last_pass": iso(moment.daemon.last_pass),
            "host": moment.daemon.host,
            "overdue": moment.daemon.overdue,
        },
        "pools": [use.as_json() for use in uses],
        "waiting": [
            waiter_json(moment, waiter, records[waiter.request.id])
            for use in uses
            for waiter in lines[use.name]
        ],
        "reservations": [reservation_json(one) for use in uses for one in use.reservations],
        "ungated": [
            {
                "run": lease.run_id,
                "team": lease.team,
                "pool": lease.pool,
                "gpus": gpus(lease.gpus),
                "since": iso(lease.started_at),
            }
            for lease in moment.leases
            if lease.ungated
        ],
    }
