"""``gpufair pools``: what each pool has, how much of it is free, and what is reserved for whom."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
from rich.console import RenderableType

from dagster_gpufair.cli.instance.opening import opened_ledger
from dagster_gpufair.cli.instance.option import instance_option
from dagster_gpufair.cli.moment.current import Moment, read_moment
from dagster_gpufair.cli.moment.header_json import header_json
from dagster_gpufair.cli.moment.reservations import reserved_for
from dagster_gpufair.cli.moment.warnings import warnings
from dagster_gpufair.cli.output.json_output import json_option, show_json
from dagster_gpufair.cli.output.tables import Column, headline, show, table, under
from dagster_gpufair.cli.output.text import plain
from dagster_gpufair.cli.output.times import clock
from dagster_gpufair.cli.pools.cordon import cordon_words
from dagster_gpufair.cli.pools.grants_and_windows import grants_and_windows
from dagster_gpufair.cli.pools.pool_use import (
    NodeUse,
    PoolUse,
    cordon_json,
    counts_in_words,
    pool_uses,
)
from dagster_gpufair.policy.quantities import duration_in_words, format_gpus
from dagster_gpufair.scheduling.waiting import words

NODES_SHOWN = 12


@click.command()
@instance_option
@json_option
def pools(home: Path | None, as_json: bool) -> None:
    """The GPUs of each pool: in use, free and reserved."""
    with opened_ledger(home) as opened, opened.ledger.reading() as session:
        moment = read_moment(opened, session, time.time())
    uses = pool_uses(moment)
    if as_json:
        show_json(
            {
                **header_json(moment),
                "pools": [use.as_json() for use in uses],
                "cordoned": [cordon_json(each) for each in moment.cordons],
                "grants_and_windows": [
                    each.as_json(moment.now)
                    for each in grants_and_windows(moment.policy, moment.now)
                ],
            }
        )
        return
    columns = [
        Column("pool"),
        *(Column(title, right=True) for title in ("GPUs", "in use", "borrowed", "free")),
        Column("held back", right=True),
        Column("waiting", right=True),
        Column("free on each node", wraps=True),
    ]
    show(
        *warnings(moment),
        f"policy v{moment.version.version}, {clock(moment.now, moment.now, seconds=True)}",
        table(columns, [_row(use) for use in uses]),
        *_told(moment, uses),
        "",
        "borrowed: used over quotas. held back: free, but not lent by its team. `gpufair queue` shows "
        "what waits, `gpufair teams` who may use what.",
    )


def _row(use: PoolUse) -> Sequence[str]:
    return (
        plain(use.name),
        format_gpus(use.gpus),
        format_gpus(use.in_use),
        format_gpus(use.borrowed),
        format_gpus(use.free),
        words.part(use.held_back),
        str(use.waiting),
        _nodes_text(use),
    )


def _told(moment: Moment, uses: Sequence[PoolUse]) -> Iterator[RenderableType]:
    """What only some pools have, under a headline each: cordons, reservations, grants and windows."""
    now = moment.now
    reserved = [line for use in uses for line in _reserved(moment, use)]
    more = grants_and_windows(moment.policy, now)
    parts = {
        "in maintenance": [cordon_words(moment, each) for each in moment.cordons],
        "reserved": reserved,
        "in force": [each.words(now) for each in more if each.start <= now],
        "next": [each.words(now) for each in more if each.start > now],
    }
    for title, lines in parts.items():
        if lines:
            yield ""
            yield headline(title)
            yield from (under(line) for line in lines)


def _reserved(moment: Moment, use: PoolUse) -> Iterator[str]:
    if use.lane is not None:
        lane = use.lane.lane
        yield (
            f"in the fast lane of {plain(use.name)}: {format_gpus(use.lane.free)} of "
            f"{format_gpus(lane.gpus)} free, for runs of at most {words.in_gpus(lane.max_gpus)} and "
            f"{duration_in_words(lane.max_duration)}"
        )
    for promise in moment.snapshot.promises.in_pool(use.name):
        name = moment.names[promise.request.id]
        yield f"for {name}: {format_gpus(promise.gpus)} {plain(use.name)}, as promised"
    for reservation in use.reservations:
        yield reserved_for(reservation, moment.names, moment.now)


def _nodes_text(use: PoolUse) -> str:
    """``h1 4 of 8, h2 in maintenance (5 in use)``; those with the most free first, if they are many."""
    if use.nodes is None:
        return "any, it has no nodes" if use.gpus else f"not in the policy{counts_in_words(use)}"
    nodes = list(use.nodes.items())
    if len(nodes) > NODES_SHOWN:
        nodes = sorted(nodes, key=lambda node: (-node[1].free, node[0]))[:NODES_SHOWN]
    parts = [f"{plain(name)} {_node_text(node)}" for name, node in nodes]
    more = len(use.nodes) - len(nodes)
    return ", ".join(parts) + (f", and {more} more (--json has all)" if more else "")


def _node_text(node: NodeUse) -> str:
    if node.cordon is None:
        return f"{format_gpus(node.free)} of {format_gpus(node.gpus)}"
    return "in maintenance" + (f" ({format_gpus(node.used)} in use)" if node.used else "")
