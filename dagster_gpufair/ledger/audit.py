"""Whether every grant was within the rules, from the record alone.

Knows nothing of how decisions are made: it replays the starts and ends of leases against the
policies in the ledger. What a pass releases at a moment is free for what is granted at that moment.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from itertools import pairwise

from pydantic import ValidationError
from sqlalchemy.orm import Session

from dagster_gpufair.ledger import leases, policies
from dagster_gpufair.ledger.leases import LeaseRecord
from dagster_gpufair.ledger.policies import PolicyVersion
from dagster_gpufair.policy.models import Policy, Pool, Team
from dagster_gpufair.policy.problems import PolicyError
from dagster_gpufair.policy.quantities import format_gpus
from dagster_gpufair.policy.yaml_text import read_yaml
from dagster_gpufair.scheduling.accounts import rights_of
from dagster_gpufair.scheduling.model import Class

_ENDS, _STARTS = 0, 1


def violations(session: Session) -> list[str]:
    """Each grant that broke a rule, in a sentence with its numbers, in the order they happened.

    Looked at are the capacity of pools and nodes, quotas and borrow limits, what is held back for
    other teams, and that a request has one lease at a time. GPUs used without a grant are left out,
    also from the sums: see `ungated_use`.
    """
    record = [lease for lease in leases.ever(session) if not lease.ungated]
    versions = policies.history(session)
    return [*_overlaps(record), *_unreadable(versions), *_broken_rules(record, versions)]


def ungated_use(session: Session) -> list[str]:
    """Each use of GPUs without a grant, in a sentence."""
    return [
        f"run {lease.run_id} of team {lease.team} used {format_gpus(lease.gpus)} × {lease.pool} "
        f"without a grant from {_clock(lease.started_at)} "
        + ("on" if lease.released_at is None else f"until {_clock(lease.released_at)}")
        for lease in leases.ever(session)
        if lease.ungated
    ]


class _Held:
    """The GPUs in granted leases at one moment."""

    def __init__(self) -> None:
        self.by_team: Counter[tuple[str, str]] = Counter()
        self.by_node: Counter[tuple[str, str]] = Counter()
        self._by_pool: Counter[str] = Counter()
        self._on_no_node: Counter[str] = Counter()

    def count(self, lease: LeaseRecord, sign: int) -> None:
        """Add a lease that starts (1), or take one off that ends (-1)."""
        gpus = sign * lease.gpus
        self.by_team[lease.team, lease.pool] += gpus
        self._by_pool[lease.pool] += gpus
        if not lease.nodes:
            self._on_no_node[lease.pool] += gpus
        for node, part in lease.nodes.items():
            self.by_node[lease.pool, node] += sign * part

    def in_pool(self, name: str, pool: Pool) -> int:
        """What counts against a pool's capacity: not what is on nodes that left it."""
        if pool.nodes is None:
            return self._by_pool[name]
        return self._on_no_node[name] + sum(self.by_node[name, node] for node in pool.nodes)


def _overlaps(record: Sequence[LeaseRecord]) -> Iterator[str]:
    ordered = sorted(record, key=lambda lease: (lease.request_id, lease.started_at, lease.id))
    for first, second in pairwise(ordered):
        if first.request_id != second.request_id:
            continue
        if first.released_at is None or first.released_at > second.started_at:
            yield (
                f"request {first.request_id} has two leases at once: {first.id} and {second.id}, "
                f"from {_clock(second.started_at)}"
            )


def _unreadable(versions: Sequence[PolicyVersion]) -> Iterator[str]:
    for version in versions:
        if _policy(version) is None:
            yield f"policy v{version.version} cannot be read, so its grants were not looked at"


def _broken_rules(
    record: Sequence[LeaseRecord], versions: Sequence[PolicyVersion]
) -> Iterator[str]:
    read = {version.version: _policy(version) for version in versions}
    held = _Held()
    for at, what, lease in _moments(record):
        held.count(lease, 1 if what == _STARTS else -1)
        if what == _ENDS:
            continue
        decided_by = lease.policy_version or _in_force(versions, at)
        if decided_by not in read:
            broken = ["no policy was in force"]
        else:
            policy = read[decided_by]
            broken = [] if policy is None else list(_broken_by(policy, lease, held))
        for rule in broken:
            yield (
                f"{_clock(at)}: lease {lease.id} of {format_gpus(lease.gpus)} × {lease.pool} for "
                f"run {lease.run_id} (team {lease.team}): {rule}"
            )


def _moments(record: Sequence[LeaseRecord]) -> list[tuple[float, int, LeaseRecord]]:
    """Ends before starts at the same moment; a lease that ended as it began held nothing."""
    moments = []
    for lease in record:
        if lease.released_at == lease.started_at:
            continue
        moments.append((lease.started_at, _STARTS, lease))
        if lease.released_at is not None:
            moments.append((lease.released_at, _ENDS, lease))
    return sorted(moments, key=lambda moment: (moment[0], moment[1], moment[2].id))


def _broken_by(policy: Policy, lease: LeaseRecord, held: _Held) -> Iterator[str]:
    """The rules that a grant broke, given what is held with it."""
    pool = policy.pools.get(lease.pool)
    if pool is None:
        yield "the policy has no such pool"
        return
    in_use = held.in_pool(lease.pool, pool)
    if in_use > pool.capacity:
        yield f"{format_gpus(in_use)} of {format_gpus(pool.capacity)} GPUs of the pool in use"
    for node in lease.nodes:
        size = (pool.nodes or {}).get(node, 0)
        on_node = held.by_node[lease.pool, node]
        if on_node > size:
            yield f"{format_gpus(on_node)} of {format_gpus(size)} GPUs of node {node} in use"
    yield from _beyond_quota(policy, lease, held)
    kept = sum(
        max(0, _unlent(team, lease.pool) - held.by_team[name, lease.pool])
        for name, team in policy.teams.items()
        if name != lease.team
    )
    if kept > max(0, pool.capacity - in_use):
        yield (
            f"it left {format_gpus(max(0, pool.capacity - in_use))} GPUs, and {format_gpus(kept)} "
            "are held back for other teams"
        )


def _beyond_quota(policy: Policy, lease: LeaseRecord, held: _Held) -> Iterator[str]:
    if lease.class_ is Class.URGENT:
        return
    team = policy.teams.get(lease.team)
    quota = team.quota.get(lease.pool, 0) if team else 0
    limit = team.borrow_limit.get(lease.pool) if team else None
    use = held.by_team[lease.team, lease.pool]
    if use <= quota:
        return
    has = f"the team has {format_gpus(use)} GPUs with a quota of {format_gpus(quota)}"
    if lease.class_ is Class.GUARANTEED:
        yield f"{has}, so it was not guaranteed"
        return
    rights = rights_of(policy, lease.tier, lease.kind)
    if rights is None or rights.barred:
        yield f"{has}, and it may not borrow"
    elif limit is not None and use - quota > limit:
        yield f"{has} and a borrow limit of {format_gpus(limit)}"


def _unlent(team: Team, pool: str) -> int:
    quota = team.quota.get(pool, 0)
    return max(0, quota - team.lend_limit.get(pool, quota))


def _in_force(versions: Sequence[PolicyVersion], at: float) -> int | None:
    adopted = [version.version for version in versions if version.adopted_at <= at]
    return adopted[-1] if adopted else None


def _policy(version: PolicyVersion) -> Policy | None:
    """Without the checks of today, which an old policy need not have passed."""
    try:
        data, _ = read_yaml(version.document, f"policy v{version.version}")
        return Policy.model_validate(data)
    except (PolicyError, ValidationError):
        return None


def _clock(at: float) -> str:
    return datetime.fromtimestamp(at, timezone.utc).isoformat(timespec="seconds")
