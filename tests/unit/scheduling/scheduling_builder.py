"""States a policy and a queue in a few lines, in the words of the policy file.

    result = decide(
        policy({"t4": 4}, {"red": {"quota": {"t4": 4}}}),
        queued=[ask("q1", "red", "t4", 2, waited="5m")],
    )
    assert result.started == ["q1"]

A pool is its GPUs, or its nodes with theirs. GPU amounts are numbers of GPUs, times durations ago.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dagster_gpufair.policy.models import Policy
from dagster_gpufair.policy.quantities import parse_duration, parse_gpus
from dagster_gpufair.scheduling.model import Account, Lease, Plan, Request, Start, State, Waiting
from dagster_gpufair.scheduling.plan import plan

NOW = 1_800_000_000.0


def policy(
    pools: Mapping[str, float | Mapping[str, float]],
    teams: Mapping[str, Mapping[str, Any]],
    **sections: Any,
) -> Policy:
    written = {
        name: {"nodes": pool} if isinstance(pool, Mapping) else {"gpus": pool}
        for name, pool in pools.items()
    }
    return Policy.model_validate({"pools": written, "teams": teams, **sections})


def ask(
    id: str,
    team: str,
    pools: str,
    gpus: float,
    *,
    waited: str = "1m",
    tier: str = "standard",
    min_gpus: float | None = None,
    per_node: float | None = None,
    max_duration: str | None = None,
    **more: Any,
) -> Request:
    """A waiting request; ``pools`` as in the tag: ``h100,a100``."""
    return Request(
        id=id,
        team=team,
        tier=tier,
        pools=tuple(pools.split(",")),
        gpus=parse_gpus(gpus),
        submitted=NOW - seconds(waited),
        min_gpus=None if min_gpus is None else parse_gpus(min_gpus),
        gpus_per_node=None if per_node is None else parse_gpus(per_node),
        max_duration=None if max_duration is None else seconds(max_duration),
        **more,
    )


def holds(
    id: str,
    team: str,
    pool: str,
    gpus: float,
    *,
    on: str | Mapping[str, float] = (),
    since: str = "1h",
    tier: str = "standard",
    max_duration: str | None = None,
    **more: Any,
) -> Lease:
    """A running lease, on one node or on parts of several."""
    parts = {on: gpus} if isinstance(on, str) else dict(on)
    return Lease(
        id=id,
        team=team,
        tier=tier,
        pool=pool,
        gpus=parse_gpus(gpus),
        started=NOW - seconds(since),
        nodes={node: parse_gpus(part) for node, part in parts.items()},
        max_duration=None if max_duration is None else seconds(max_duration),
        **more,
    )


def state(
    queued: Iterable[Request] = (),
    running: Iterable[Lease] = (),
    *,
    used: Mapping[str, Mapping[str, float]] | None = None,
    cordoned: Mapping[str, Iterable[str]] | None = None,
    **more: Any,
) -> State:
    return State(
        requests=list(queued),
        leases=list(running),
        used={
            (Account(team), pool): hours
            for team, pools in (used or {}).items()
            for pool, hours in pools.items()
        },
        cordoned={pool: frozenset(nodes) for pool, nodes in (cordoned or {}).items()},
        **more,
    )


def seconds(duration: str) -> float:
    return parse_duration(duration).total_seconds()


@dataclass
class Decision:
    """A plan, asked by id."""

    plan: Plan

    @property
    def started(self) -> list[str]:
        return [start.request.id for start in self.plan.starts]

    @property
    def reasons(self) -> dict[str, str]:
        return self.plan.reasons()

    def start(self, id: str) -> Start:
        return next(start for start in self.plan.starts if start.request.id == id)

    def waiting(self, id: str) -> Waiting:
        return next(
            group for group in self.plan.waiting if id in {request.id for request in group.requests}
        )

    def message(self, id: str) -> str:
        return self.waiting(id).message


def decide(rules: Policy, queued: Iterable[Request] = (), *args: Any, **kwargs: Any) -> Decision:
    """Plan at `NOW`; what follows the rules is as for `state`."""
    return Decision(plan(rules, state(queued, *args, **kwargs), NOW))
