"""Whether every grant was within the rules, from the record alone.

Knows nothing of how decisions are made: it replays the starts and ends of leases against the
policies in the ledger, with the grants and windows in force at each moment, and against the nodes that
were in service. They come in the order of their events, not by their times: clocks are set, and a run that
ended while nobody looked holds its GPUs until the pass that saw it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone

from pydantic import ValidationError
from sqlalchemy.orm import Session

from dagster_gpufair.ledger import events, leases, policies
from dagster_gpufair.ledger.entitlements import NOTHING, Entitlements, Known
from dagster_gpufair.ledger.events import Event, EventKind
from dagster_gpufair.ledger.leases import LeaseRecord
from dagster_gpufair.ledger.policies import PolicyVersion
from dagster_gpufair.ledger.state import where_it_counts
from dagster_gpufair.policy.cron import cron_trouble
from dagster_gpufair.policy.models import Policy, Pool
from dagster_gpufair.policy.problems import PolicyError
from dagster_gpufair.policy.quantities import ONE_GPU, format_gpus
from dagster_gpufair.policy.yaml_text import read_yaml
from dagster_gpufair.scheduling.accounts.holding import rights_of
from dagster_gpufair.scheduling.model import Account, Class, Lease

_CORDONS: tuple[EventKind, ...] = ("cordoned", "uncordoned")
_ENDS: tuple[EventKind, ...] = ("recalled", "preempted", "released")


def violations(session: Session) -> list[str]:
    """Each grant that broke a rule, in a sentence with its numbers, in the order they happened.

    Looked at are the capacity of pools and nodes, nodes out of service, quotas and borrow limits of
    teams and projects, what is held back for others, and that a request has one lease at a time. GPUs
    used without a grant are left out, also from the sums: see `ungated_use`.
    """
    record = {lease.id: lease for lease in leases.ever(session) if not lease.ungated}
    happened = events.of_kinds(session, (*_CORDONS, "granted", *_ENDS))
    versions = policies.history(session)
    return [*_unreadable(versions), *_broken_rules(record, happened, versions)]


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
    """The GPUs in granted leases at one moment, in the pools that have their nodes by a policy."""

    def __init__(self, policy: Policy | None = None, leases: Iterable[LeaseRecord] = ()) -> None:
        self._policy = policy
        self.by_node: Counter[tuple[str, str]] = Counter()
        """By pool and node."""
        self.by_project: defaultdict[str, Counter[tuple[str, str | None]]] = defaultdict(Counter)
        """For each pool, by team and project."""
        self._by_pool: Counter[str] = Counter()
        self._on_no_node: Counter[str] = Counter()
        for lease in leases:
            self.count(lease, 1)

    def count(self, record: LeaseRecord, sign: int) -> None:
        """Add a lease that starts (1), or take one off that ends (-1)."""
        lease = record.to_lease()
        parts = [lease] if self._policy is None else where_it_counts(self._policy, lease)
        for part in parts:
            self._count(part, sign)

    def _count(self, lease: Lease, sign: int) -> None:
        gpus = sign * lease.gpus
        self.by_project[lease.pool][lease.team, lease.project] += gpus
        self._by_pool[lease.pool] += gpus
        if not lease.nodes:
            self._on_no_node[lease.pool] += gpus
        for node, part in lease.nodes.items():
            self.by_node[lease.pool, node] += sign * part

    def in_pool(self, name: str, pool: Pool, but: frozenset[str] = frozenset()) -> int:
        """What counts against a pool's capacity: not what is on nodes that left it, nor ``but`` on these."""
        if pool.nodes is None:
            return self._by_pool[name]
        here = sum(self.by_node[name, node] for node in pool.nodes if node not in but)
        return self._on_no_node[name] + here


def _unreadable(versions: Sequence[PolicyVersion]) -> Iterator[str]:
    for version in versions:
        if _policy(version) is None:
            yield f"policy v{version.version} cannot be read, so its grants were not looked at"


def _broken_rules(
    record: Mapping[int, LeaseRecord],
    happened: Sequence[Event],
    versions: Sequence[PolicyVersion],
) -> Iterator[str]:
    read = {version.version: _policy(version) for version in versions}
    held, known = _Held(), Known()
    counted_by: int | None = None
    open_: dict[str, LeaseRecord] = {}
    away: defaultdict[str | None, frozenset[str]] = defaultdict(frozenset)
    for event in happened:
        if event.kind == "cordoned":
            away[event.pool] |= {event.data["node"]}
            continue
        if event.kind == "uncordoned":
            away[event.pool] -= {event.data["node"]}
            continue
        lease = record.get(event.data["lease"])
        if lease is None:
            continue
        if event.kind != "granted":
            held.count(lease, -1)
            open_.pop(lease.request_id, None)
            continue
        decided_by = lease.policy_version or _in_force(versions, lease.started_at)
        if decided_by != counted_by:
            counted_by = decided_by
            held = _Held(read.get(decided_by or 0), open_.values())
        held.count(lease, 1)
        first = open_.setdefault(lease.request_id, lease)
        if first is not lease:
            yield (
                f"request {lease.request_id} has two leases at once: {first.id} and {lease.id}, "
                f"from {_clock(lease.started_at)}"
            )
        if decided_by not in read:
            broken = ["no policy was in force"]
        else:
            policy = read[decided_by]
            rules = policy and _broken_by(policy, lease, held, away[lease.pool], known)
            broken = list(rules or ())
        for rule in broken:
            yield (
                f"{_clock(lease.started_at)}: lease {lease.id} of {format_gpus(lease.gpus)} × "
                f"{lease.pool} for run {lease.run_id} (team {lease.team}): {rule}"
            )


def _broken_by(
    policy: Policy, lease: LeaseRecord, held: _Held, cordoned: frozenset[str], known: Known
) -> Iterator[str]:
    """The rules that a grant broke, given what is held with it and the nodes out of service."""
    pool = policy.pools.get(lease.pool)
    if pool is None:
        yield "the policy has no such pool"
        return
    in_use = held.in_pool(lease.pool, pool)
    if in_use > pool.capacity:
        yield f"{format_gpus(in_use)} of {format_gpus(pool.capacity)} GPUs of the pool in use"
    sizes = pool.nodes or {}
    for node in lease.nodes:
        size, on_node = sizes.get(node, 0), held.by_node[lease.pool, node]
        if on_node > size:
            yield f"{format_gpus(on_node)} of {format_gpus(size)} GPUs of node {node} in use"
        if node in cordoned:
            yield f"node {node} was out of service"
    in_service = pool.capacity - sum(size for node, size in sizes.items() if node in cordoned)
    entitled = known.at(lease.started_at, policy, lease.pool, in_service)
    account = entitled.account(lease.team, lease.project)
    use: Counter[Account] = Counter()
    for (team, project), gpus in held.by_project[lease.pool].items():
        use[entitled.account(team, project)] += gpus
    yield from _beyond_quota(policy, lease, account, entitled, use)
    left = max(0, in_service - held.in_pool(lease.pool, pool, but=cordoned))
    # Its own part that was held back until now is no room for what others are granted for a time.
    kept = entitled.kept_from(account, {**use, account: use[account] - lease.gpus})
    if kept > left:
        yield f"it left {_free(left)}, and {format_gpus(kept)} are held back for others"


def _beyond_quota(
    policy: Policy,
    lease: LeaseRecord,
    account: Account,
    entitled: Entitlements,
    use: Mapping[Account, int],
) -> Iterator[str]:
    if lease.class_ is Class.URGENT:
        return
    own, team = entitled.of(account), entitled.teams.get(account.team, NOTHING)
    used = use[account]
    of_team = sum(gpus for other, gpus in use.items() if other.team == account.team)
    its = f"{account} has {format_gpus(used)} GPUs with a quota of {format_gpus(own.quota)}"
    all_of_it = (
        f"{account.team} has {format_gpus(of_team)} GPUs with a quota of {format_gpus(team.quota)}"
    )
    if lease.class_ is Class.GUARANTEED:
        if used > own.quota:
            yield f"{its}, so it was not guaranteed"
        return
    if own.borrow_limit is not None and used - own.quota > own.borrow_limit:
        yield f"{its} and a borrow limit of {format_gpus(own.borrow_limit)}"
    if of_team <= team.quota:
        return
    if lease.class_ is Class.SHARED:
        yield f"{all_of_it}, so it was not guaranteed"
        return
    rights = rights_of(policy, lease.team, lease.pool, lease.tier, lease.kind)
    if rights is None or rights.barred:
        yield f"{all_of_it}, and it may not borrow"
    limit = team.borrow_limit
    if own is not team and limit is not None and of_team - team.quota > limit:
        yield f"{all_of_it} and a borrow limit of {format_gpus(limit)}"


def _in_force(versions: Sequence[PolicyVersion], at: float) -> int | None:
    adopted = [version.version for version in versions if version.adopted_at <= at]
    return adopted[-1] if adopted else None


def _policy(version: PolicyVersion) -> Policy | None:
    """Without the checks of today, which an old policy need not have passed."""
    try:
        data, _ = read_yaml(version.document, f"policy v{version.version}")
        policy = Policy.model_validate(data)
    except (PolicyError, ValidationError):
        return None
    # Without a schedule that can be followed, nobody can tell what was held for whom.
    crons = (window.cron for window in policy.windows if window.cron is not None)
    return None if any(map(cron_trouble, crons)) else policy


def _free(gpus: int) -> str:
    if not gpus:
        return "no GPUs free"
    return f"{format_gpus(gpus)} GPU{'' if gpus == ONE_GPU else 's'} free"


def _clock(at: float) -> str:
    return datetime.fromtimestamp(at, timezone.utc).isoformat(timespec="seconds")
