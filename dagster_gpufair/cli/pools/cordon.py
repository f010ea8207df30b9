"""``gpufair cordon`` and ``uncordon``: nodes that accept no new runs, while what runs there goes on."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click

from dagster_gpufair.cli.instance.opening import opened_ledger
from dagster_gpufair.cli.instance.option import instance_option
from dagster_gpufair.cli.instance.person import person
from dagster_gpufair.cli.moment.current import Moment, read_moment
from dagster_gpufair.cli.moment.request_words import of_json, who
from dagster_gpufair.cli.moment.warnings import warnings
from dagster_gpufair.cli.output.json_output import json_option, show_json
from dagster_gpufair.cli.output.tables import show, under
from dagster_gpufair.cli.output.text import counted, plain, sentence
from dagster_gpufair.cli.output.times import clock
from dagster_gpufair.cli.pools.pool_use import cordon_json
from dagster_gpufair.ledger import nodes
from dagster_gpufair.ledger.nodes import CordonedNode
from dagster_gpufair.policy.problems import unknown
from dagster_gpufair.scheduling.model import Lease

_RUNS_SHOWN = 8


@click.command()
@click.argument("pool")
@click.argument("node")
@click.option("--reason", default="", metavar="TEXT", help="Why, for all who ask.")
@instance_option
@json_option
def cordon(pool: str, node: str, reason: str, home: Path | None, as_json: bool) -> None:
    """Take a node into maintenance: it accepts no new runs.

    What runs on it goes on to its end. A node that is in maintenance already stays so, for the
    reason given first.
    """
    with opened_ledger(home) as opened:
        ledger, now = opened.ledger, time.time()
        with ledger.reading() as session:
            moment = read_moment(opened, session, now)
        _require_known(pool, node, _nodes_of_policy(moment))
        with ledger.writing() as session:
            is_new = nodes.cordon(session, pool, node, person(), reason.strip(), now)
            all_now = nodes.cordoned(session)
    there = next(each for each in all_now if (each.pool, each.node) == (pool, node))
    if as_json:
        runs = [of_json(lease, moment.runs) for lease in _on(moment, pool, node)]
        show_json({**cordon_json(there), "new": is_new, "runs": runs})
        return
    name = f"{plain(pool)} {plain(node)}"
    show(*warnings(moment))
    if is_new:
        show(f"{name} accepts no new runs from now on{_because(there)}.")
    else:
        show(f"{name} is in maintenance already, {_since(there, now)}; nothing changed.")
    show(*_still_on(moment, pool, node), f"`gpufair uncordon {name}` puts it back.")


@click.command()
@click.argument("pool")
@click.argument("node")
@instance_option
@json_option
def uncordon(pool: str, node: str, home: Path | None, as_json: bool) -> None:
    """Put a node back from maintenance: it accepts new runs again."""
    with opened_ledger(home) as opened:
        ledger, now = opened.ledger, time.time()
        with ledger.reading() as session:
            moment = read_moment(opened, session, now)
        # One that the policy has lost since can be put back too.
        if not any((each.pool, each.node) == (pool, node) for each in moment.cordons):
            _require_known(pool, node, _nodes_of_policy(moment))
        with ledger.writing() as session:
            was_out = nodes.uncordon(session, pool, node, person(), now)
    if as_json:
        show_json({"pool": pool, "node": node, "new": was_out})
        return
    name = f"{plain(pool)} {plain(node)}"
    show(
        *warnings(moment),
        f"{name} accepts new runs again, from the daemon's next pass on."
        if was_out
        else f"{name} is not in maintenance; nothing changed.",
    )


def cordon_words(moment: Moment, cordon: CordonedNode) -> str:
    """``h100 h3, since 12:40 by ana: ECC errors; 1 run is still on it (3f2a91c0)``."""
    name = f"{plain(cordon.pool)} {plain(cordon.node)}"
    is_there = cordon.node in _nodes_of_policy(moment).get(cordon.pool, ())
    gone = "" if is_there else "; it is not in the policy any more"
    on = _on(moment, cordon.pool, cordon.node)
    runs = ", ".join(moment.names[lease.id] for lease in on[:_RUNS_SHOWN])
    more = ", …" if len(on) > _RUNS_SHOWN else ""
    still = (
        f"; {counted(len(on), 'run')} {'is' if len(on) == 1 else 'are'} still on it ({runs}{more})"
        if on
        else ""
    )
    return f"{name}, {_since(cordon, moment.now)}{_because(cordon)}{still}{gone}"


def _since(cordon: CordonedNode, now: float) -> str:
    return f"since {clock(cordon.cordoned_at, now)} by {plain(cordon.by)}"


def _because(cordon: CordonedNode) -> str:
    return f": {sentence(cordon.reason)}" if cordon.reason else ""


def _nodes_of_policy(moment: Moment) -> dict[str, Sequence[str]]:
    return {name: list(pool.nodes or ()) for name, pool in moment.policy.pools.items()}


def _require_known(pool: str, node: str, known: dict[str, Sequence[str]]) -> None:
    if pool not in known:
        raise click.ClickException(sentence(f"{unknown('pool', pool, known)}."))
    if not known[pool]:
        raise click.ClickException(
            f"Pool {plain(pool)} has no nodes in the policy, just a number of GPUs. Lower `gpus` there "
            "while some are away."
        )
    if node not in known[pool]:
        raise click.ClickException(
            sentence(f"{unknown(f'node of pool {pool}', node, known[pool])}.")
        )


def _on(moment: Moment, pool: str, node: str) -> Sequence[Lease]:
    return [
        lease for lease in moment.state.leases if lease.pool == pool and lease.nodes.get(node, 0)
    ]


def _still_on(moment: Moment, pool: str, node: str) -> Iterable[Any]:
    """What goes on there, so that somebody can tell its owners."""
    on = _on(moment, pool, node)
    if not on:
        yield "No run is on it."
        return
    yield f"{counted(len(on), 'run')} on it {'goes' if len(on) == 1 else 'go'} on:"
    for lease in on[:_RUNS_SHOWN]:
        until = (
            "" if lease.ends is None else f", until {clock(lease.ends, moment.now)} at the latest"
        )
        yield under(f"{moment.names[lease.id]} ({who(lease)}){until}")
    if len(on) > _RUNS_SHOWN:
        yield under(f"and {len(on) - _RUNS_SHOWN} more")
