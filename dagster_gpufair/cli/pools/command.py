"""``gpufair pools``: what each pool has, how much of it is free, and what is kept of it for whom."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import RenderableType

from dagster_gpufair.cli.instance.opening import instance_option, opened
from dagster_gpufair.cli.moment.current import Moment, read_moment
from dagster_gpufair.cli.moment.reservations import kept_for, reservation_json
from dagster_gpufair.cli.output.json_output import gpus, iso, json_option, show_json
from dagster_gpufair.cli.output.tables import Column, clock, headline, plain, show, table, under
from dagster_gpufair.cli.pools.cordon import cordon_json, cordon_words
from dagster_gpufair.cli.pools.grants_and_windows import extras
from dagster_gpufair.ledger.connect import ledger_of
from dagster_gpufair.ledger.nodes import CordonedNode
from dagster_gpufair.policy.models import FastLane
from dagster_gpufair.policy.quantities import ONE_GPU, format_duration, format_gpus
from dagster_gpufair.scheduling import wording
from dagster_gpufair.scheduling.model import Reservation

NODES_SHOWN = 12


@dataclass(frozen=True)
class NodeUse:
    """GPUs of one node, in thousandths. One that is cordoned takes nothing new."""

    gpus: int
    used: int
    free: int
    cordon: CordonedNode | None

    def as_json(self) -> dict[str, Any]:
        """Under the names of the fields, in GPUs."""
        return {
            "gpus": gpus(self.gpus),
            "used": gpus(self.used),
            "free": gpus(self.free),
            "cordoned": None if self.cordon is None else cordon_json(self.cordon),
        }


@dataclass(frozen=True)
class LaneUse:
    """A fast lane, and how much of it is free, in thousandths."""

    lane: FastLane
    free: int

    def as_json(self) -> dict[str, Any]:
        """Under the keys of the policy file, in GPUs."""
        return {
            "gpus": gpus(self.lane.gpus),
            "free": gpus(self.free),
            "max_gpus": gpus(self.lane.max_gpus),
            "max_duration_seconds": self.lane.max_duration.total_seconds(),
        }


@dataclass(frozen=True)
class PoolUse:
    """What one pool has and what becomes of it. GPU amounts in thousandths.

    ``borrowed`` is what teams use above their quotas. ``held_back`` is the part of ``free`` that is
    kept for the teams that do not lend it, ``promised`` what is kept for requests whose victims leave.
    """

    name: str
    gpus: int
    ready: int
    in_use: int
    borrowed: int
    held_back: int
    promised: int
    free: int
    waiting: int
    lane: LaneUse | None
    nodes: Mapping[str, NodeUse] | None
    reservations: Sequence[Reservation]

    @property
    def in_maintenance(self) -> int:
        """What of ``in_use`` is on nodes that take nothing new."""
        nodes = (self.nodes or {}).values()
        return sum(node.used for node in nodes if node.cordon is not None)

    def as_json(self) -> dict[str, Any]:
        """Under the names of the fields, in GPUs."""
        return {
            "pool": self.name,
            "gpus": gpus(self.gpus),
            "ready": gpus(self.ready),
            "in_use": gpus(self.in_use),
            "borrowed": gpus(self.borrowed),
            "held_back": gpus(self.held_back),
            "promised": gpus(self.promised),
            "free": gpus(self.free),
            "waiting": self.waiting,
            "lane": None if self.lane is None else self.lane.as_json(),
            "nodes": None
            if self.nodes is None
            else {name: node.as_json() for name, node in self.nodes.items()},
            "reservations": [reservation_json(each) for each in self.reservations],
        }


def pool_uses(moment: Moment) -> Sequence[PoolUse]:
    """All pools of the policy, and any other in which something is held or waits."""
    in_use: Counter[str] = Counter()
    for lease in moment.state.leases:
        in_use[lease.pool] += lease.gpus
    names = dict.fromkeys([*moment.policy.pools, *sorted({*in_use, *moment.lines})])
    uses = []
    for name in names:
        room = moment.snapshot.room(name)
        pool = moment.policy.pools.get(name)
        free = max(0, room.idle)
        uses.append(
            PoolUse(
                name=name,
                gpus=pool.capacity if pool else 0,
                ready=room.ready,
                in_use=in_use[name],
                borrowed=moment.borrowed_in(name),
                held_back=min(moment.snapshot.accounts.held_back.get(name, 0), free),
                promised=sum(kept.gpus for kept in moment.snapshot.promises.in_pool(name)),
                free=free,
                waiting=len(moment.lines.get(name, ())),
                lane=None if room.lane is None else LaneUse(room.lane, min(room.lane_left, free)),
                nodes=_nodes(moment, name),
                reservations=moment.reservations_in(name),
            )
        )
    return uses


@click.command()
@instance_option
@json_option
def pools(home: Path | None, as_json: bool) -> None:
    """The GPUs of each pool: in use, free, and kept for whom."""
    with opened(home) as instance, ledger_of(instance).reading() as session:
        moment = read_moment(instance, session, time.time())
    uses = pool_uses(moment)
    if as_json:
        show_json(
            {
                "at": iso(moment.now),
                "pools": [use.as_json() for use in uses],
                "cordoned": [cordon_json(each) for each in moment.cordons],
                "extras": [each.as_json(moment.now) for each in extras(moment.policy, moment.now)],
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
        f"policy v{moment.version.version}, {clock(moment.now, moment.now, seconds=True)}",
        table(columns, [_row(use) for use in uses]),
        *_told(moment, uses),
        "",
        "borrowed: above quotas. `gpufair queue` shows what waits, `gpufair teams` who may use what.",
    )


def _row(use: PoolUse) -> Sequence[str]:
    return (
        plain(use.name),
        format_gpus(use.gpus),
        format_gpus(use.in_use),
        format_gpus(use.borrowed),
        format_gpus(use.free),
        wording.part(use.held_back),
        str(use.waiting),
        _nodes_text(use),
    )


def _told(moment: Moment, uses: Sequence[PoolUse]) -> Iterator[RenderableType]:
    """What only some pools have, under a headline each: cordoned nodes, what is kept, what is extra."""
    now = moment.now
    kept = [line for use in uses for line in _kept(moment, use)]
    more = extras(moment.policy, now)
    parts = {
        "in maintenance": [cordon_words(moment, each) for each in moment.cordons],
        "kept": kept,
        "in force": [each.words(now) for each in more if each.start <= now],
        "next": [each.words(now) for each in more if each.start > now],
    }
    for title, lines in parts.items():
        if lines:
            yield ""
            yield headline(title)
            yield from (under(line) for line in lines)


def _kept(moment: Moment, use: PoolUse) -> Iterator[str]:
    if use.lane is not None:
        lane = use.lane.lane
        yield (
            f"in the fast lane of {plain(use.name)}: {format_gpus(use.lane.free)} of "
            f"{format_gpus(lane.gpus)} free, for runs of at most {format_gpus(lane.max_gpus)} "
            f"GPU{'' if lane.max_gpus == ONE_GPU else 's'} and {format_duration(lane.max_duration)}"
        )
    for kept in moment.snapshot.promises.in_pool(use.name):
        name = moment.names[kept.request.id]
        yield f"for {name}: {format_gpus(kept.gpus)} × {plain(use.name)}, as promised"
    for reservation in use.reservations:
        yield kept_for(reservation, moment.names, moment.now)


def _nodes(moment: Moment, pool: str) -> Mapping[str, NodeUse] | None:
    room = moment.snapshot.room(pool)
    if not room.named:
        return None
    cordons = {each.node: each for each in moment.cordons if each.pool == pool}
    named: Counter[str] = Counter()
    for lease in moment.state.leases:
        if lease.pool == pool:
            named.update(lease.nodes)
    uses = {}
    for name, size in room.nodes.sizes.items():
        cordon = cordons.get(name)
        used = size - room.nodes.free[name] if cordon is None else named[name]
        uses[name] = NodeUse(size, used, max(0, size - used) if cordon is None else 0, cordon)
    return uses


def _nodes_text(use: PoolUse) -> str:
    """``h1 4 of 8, h2 in maintenance (5 in use)``; those with the most free first, if they are many."""
    if use.nodes is None:
        return "any, it has no nodes" if use.gpus else "not in the policy"
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
