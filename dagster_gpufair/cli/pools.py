"""``gpufair pools``: what each pool has, and how much of it is free."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from dagster_gpufair.cli.export import gpus, iso, json_option, show_json
from dagster_gpufair.cli.instance import instance_option, opened
from dagster_gpufair.cli.moment import Moment, read_moment
from dagster_gpufair.cli.tables import Column, clock, plain, show, table
from dagster_gpufair.ledger.connect import ledger_of
from dagster_gpufair.policy.quantities import format_gpus

NODES_SHOWN = 12


@dataclass(frozen=True)
class NodeUse:
    """GPUs of one node, in thousandths. One that is not ``ready`` takes nothing new."""

    gpus: int
    used: int
    free: int
    ready: bool

    def as_json(self) -> dict[str, Any]:
        """Under the names of the fields, in GPUs."""
        return {
            "gpus": gpus(self.gpus),
            "used": gpus(self.used),
            "free": gpus(self.free),
            "ready": self.ready,
        }


@dataclass(frozen=True)
class PoolUse:
    """What one pool has and what becomes of it. GPU amounts in thousandths.

    ``held_back`` is the part of ``free`` that is kept for the teams that do not lend it.
    """

    name: str
    gpus: int
    ready: int
    in_use: int
    borrowed: int
    held_back: int
    free: int
    waiting: int
    nodes: Mapping[str, NodeUse] | None

    def as_json(self) -> dict[str, Any]:
        """Under the names of the fields, in GPUs."""
        return {
            "pool": self.name,
            "gpus": gpus(self.gpus),
            "ready": gpus(self.ready),
            "in_use": gpus(self.in_use),
            "borrowed": gpus(self.borrowed),
            "held_back": gpus(self.held_back),
            "free": gpus(self.free),
            "waiting": self.waiting,
            "nodes": None
            if self.nodes is None
            else {name: node.as_json() for name, node in self.nodes.items()},
        }


def pool_uses(moment: Moment) -> Sequence[PoolUse]:
    """All pools of the policy, and any other in which something is held or waits."""
    in_use: Counter[str] = Counter()
    for lease in moment.state.leases:
        in_use[lease.pool] += lease.gpus
    borrowed: Counter[str] = Counter()
    for (_, pool_name), amount in moment.borrowed_gpus.items():
        borrowed[pool_name] += amount
    names = dict.fromkeys([*moment.policy.pools, *sorted({*in_use, *moment.lines})])
    uses = []
    for name in names:
        room = moment.snapshot.room(name)
        pool = moment.policy.pools.get(name)
        uses.append(
            PoolUse(
                name=name,
                gpus=pool.capacity if pool else 0,
                ready=room.ready,
                in_use=in_use[name],
                borrowed=borrowed[name],
                held_back=min(moment.snapshot.accounts.held_back.get(name, 0), max(0, room.free)),
                free=max(0, room.free),
                waiting=len(moment.lines.get(name, ())),
                nodes=_nodes(moment, name),
            )
        )
    return uses


@click.command()
@instance_option
@json_option
def pools(home: Path | None, as_json: bool) -> None:
    """The GPUs of each pool, in use and free."""
    with opened(home) as instance, ledger_of(instance).reading() as session:
        moment = read_moment(instance, session, time.time())
    uses = pool_uses(moment)
    if as_json:
        show_json({"at": iso(moment.now), "pools": [use.as_json() for use in uses]})
        return
    columns = [
        Column("pool"),
        *(Column(title, right=True) for title in ("GPUs", "in use", "borrowed", "free")),
        Column("held back", right=True),
        Column("waiting", right=True),
        Column("free on each node", wraps=True),
    ]
    show(
        f"policy v{moment.version.version}, {clock(moment.now, moment.now, seconds=True)}",
        table(columns, [_row(use) for use in uses]),
        "",
        "`gpufair queue` shows what waits, `gpufair teams` who may use what.",
    )


def _row(use: PoolUse) -> Sequence[str]:
    return (
        plain(use.name),
        format_gpus(use.gpus),
        format_gpus(use.in_use),
        format_gpus(use.borrowed),
        format_gpus(use.free),
        format_gpus(use.held_back),
        str(use.waiting),
        _nodes_text(use),
    )


def _nodes(moment: Moment, pool: str) -> Mapping[str, NodeUse] | None:
    nodes = moment.snapshot.room(pool).nodes
    if nodes is None:
        return None
    named: Counter[str] = Counter()
    for lease in moment.state.leases:
        if lease.pool == pool:
            named.update(lease.nodes)
    uses = {}
    for name, size in nodes.sizes.items():
        ready = name in nodes.free
        used = size - nodes.free[name] if ready else named[name]
        uses[name] = NodeUse(size, used, max(0, size - used) if ready else 0, ready)
    return uses


def _nodes_text(use: PoolUse) -> str:
    """``h1 4 of 8, h2 maintenance``; those with the most free first, if they are many."""
    if use.nodes is None:
        return "any, it has no nodes" if use.gpus else "not in the policy"
    nodes = list(use.nodes.items())
    if len(nodes) > NODES_SHOWN:
        nodes = sorted(nodes, key=lambda node: (-node[1].free, node[0]))[:NODES_SHOWN]
    parts = [
        f"{plain(name)} {format_gpus(node.free)} of {format_gpus(node.gpus)}"
        if node.ready
        else f"{plain(name)} in maintenance"
        for name, node in nodes
    ]
    more = len(use.nodes) - len(nodes)
    return ", ".join(parts) + (f", and {more} more (--json has all)" if more else "")
