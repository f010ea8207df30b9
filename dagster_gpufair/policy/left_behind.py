"""Whom a change of the policy leaves behind: runs under names that are in the new one no more."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from dagster_gpufair.policy.models import Policy, Pool
from dagster_gpufair.policy.problems import did_you_mean, dotted, listed


class Work(NamedTuple):
    """A run by the names that it holds or asks for GPUs under.

    ``pools`` are those that it would take, or the one that it has GPUs of, on ``nodes``.
    """

    id: str
    team: str
    tier: str
    pools: tuple[str, ...]
    nodes: tuple[str, ...] = ()


class LeftBehind(NamedTuple):
    """A key that is gone, and the ids of the runs that still go by it.

    ``message`` says what is gone. Who holds GPUs goes on until it ends; who waits can start no more.
    """

    path: str
    message: str
    holding: Sequence[str]
    waiting: Sequence[str]


def left_behind(
    old: Policy, new: Policy, holding: Iterable[Work], waiting: Iterable[Work]
) -> list[LeftBehind]:
    """What the new policy lacks of the old one while runs still go by it."""
    holding, waiting = list(holding), list(waiting)
    rules = (_pools, _nodes, _teams, _tiers)
    found = (each for rule in rules for each in rule(old, new, holding, waiting))
    return [each for each in found if each.holding or each.waiting]


def _pools(
    old: Policy, new: Policy, holding: Sequence[Work], waiting: Sequence[Work]
) -> Iterator[LeftBehind]:
    homeless = [work for work in waiting if not any(pool in new.pools for pool in work.pools)]
    for pool, its in old.pools.items():
        if pool not in new.pools:
            yield LeftBehind(
                dotted("pools", pool),
                f"pool {pool} is gone{_renamed(pool, its, old, new)}",
                [work.id for work in holding if pool in work.pools],
                # Under the pool that it likes best, so that each is named once.
                [work.id for work in homeless if work.pools[:1] == (pool,)],
            )


def _renamed(pool: str, its: Pool, old: Policy, new: Policy) -> str:
    nodes = set(its.nodes or ())
    heirs = [name for name, other in new.pools.items() if nodes & set(other.nodes or ())]
    if heirs:
        return f", and its nodes are in {listed(heirs)} now"
    hint = did_you_mean(pool, [name for name in new.pools if name not in old.pools])
    return f"; {hint}" if hint else ""


def _nodes(
    old: Policy, new: Policy, holding: Sequence[Work], _: Sequence[Work]
) -> Iterator[LeftBehind]:
    there = {node for pool in new.pools.values() for node in pool.nodes or ()}
    for pool, its in old.pools.items():
        for node in (its.nodes or ()) if pool in new.pools else ():
            if node not in there:
                yield LeftBehind(
                    dotted("pools", pool, "nodes", node),
                    f"node {node} of {pool} is gone",
                    [work.id for work in holding if pool in work.pools and node in work.nodes],
                    (),
                )


def _teams(
    old: Policy, new: Policy, holding: Sequence[Work], waiting: Sequence[Work]
) -> Iterator[LeftBehind]:
    for team in old.teams:
        if team not in new.teams:
            hint = did_you_mean(team, [name for name in new.teams if name not in old.teams])
            yield LeftBehind(
                dotted("teams", team),
                f"team {team} is gone{'; ' + hint if hint else ''}",
                [work.id for work in holding if work.team == team],
                [work.id for work in waiting if work.team == team],
            )


def _tiers(
    old: Policy, new: Policy, holding: Sequence[Work], waiting: Sequence[Work]
) -> Iterator[LeftBehind]:
    for tier in old.tiers:
        if tier not in new.tiers:
            hint = did_you_mean(tier, [name for name in new.tiers if name not in old.tiers])
            yield LeftBehind(
                dotted("tiers", tier),
                f"tier {tier} is gone{'; ' + hint if hint else ''}",
                [work.id for work in holding if work.tier == tier],
                [work.id for work in waiting if work.tier == tier],
            )
