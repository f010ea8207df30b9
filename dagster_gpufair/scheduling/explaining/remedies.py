"""What would help: the smallest changes with which a request would start now.

Each change is tried by asking `plan` itself, so that it means what the decision means, for the run as it
would be launched again, without what it has waited. Only what a run may ask for is proposed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from operator import attrgetter
from typing import Any, NamedTuple

from dagster_gpufair.policy.in_force import upcoming
from dagster_gpufair.policy.models import Policy
from dagster_gpufair.policy.quantities import ONE_GPU
from dagster_gpufair.scheduling.accounts.ceilings import SLACK
from dagster_gpufair.scheduling.explaining.refusal import why_never
from dagster_gpufair.scheduling.model import Plan, Request, State
from dagster_gpufair.scheduling.plan import plan
from dagster_gpufair.scheduling.snapshot import Snapshot

MOST_TRIES = 40
"""A decision is asked no more often than this."""

DURATIONS = (24 * 3600.0, 12 * 3600.0, 4 * 3600.0, 2 * 3600.0, 3600.0, 1800.0, 900.0)
"""The bounds that are tried, in seconds: the longest that helps is the smallest change."""

LEAST_MARGIN = 60.0
"""Seconds of what is left until something kept begins that no bound takes: to read it and launch again."""

MARGIN_PART = 0.1
"""The part of what is left that no bound takes, where that is more."""


class Remedy(NamedTuple):
    """One change with which the request would start now, or, for ``wait``, what it would wait for.

    ``change`` is ``cpus``, ``memory_gib``, ``gpus``, ``pool``, ``tier``, ``gpus_per_node``, ``max_duration``
    or ``wait``; ``value`` is what it would be: an amount (0: nothing declared), thousandths of GPUs, a name,
    seconds, or the time since the epoch at which it would start. ``gpus`` and ``pool`` say what it would
    start with; ``stops`` are leases that would be given notice for it, so that it starts when they have
    left.
    """

    change: str
    value: int | float | str
    pool: str
    gpus: int
    stops: tuple[str, ...] = ()


def what_would_help(policy: Policy, state: State, request: Request, now: float) -> list[Remedy]:
    """For each kind of change the smallest that would start the request now, in this order:

    fewer CPUs or less memory where a ceiling keeps it, fewer GPUs, another pool, another tier that its team
    has, another split over nodes, a shorter ``max_duration``; and, for a request that only waits for space,
    the bound by which it fits as it is.
    """
    asked, snapshot = _Asked(policy, state, now), Snapshot(policy, state, now)
    decided = asked.as_it_is
    settled = Snapshot(policy, state.after(decided.starts, now), now)
    found = []
    for tries in (
        _less_declared("cpus", (snapshot, settled), request),
        _less_declared("memory_gib", (snapshot, settled), request),
        _fewer_gpus(snapshot, request),
        _other_pools(policy, request),
        _other_tiers(policy, request),
        _other_splits(policy, request),
        _shorter(request, asked.kept_from(), now),
    ):
        for change, value, changed in tries:
            remedy = asked.about(change, value, changed)
            # Where it starts without the pool that was added, that pool is no help.
            if remedy is not None and (change != "pool" or remedy.pool == value):
                found.append(remedy)
                break
    wait = _wait(snapshot, request)
    return [*found, wait] if wait is not None else found


class _Asked:
    """`plan` with the request changed, as often as `MOST_TRIES` allows."""

    def __init__(self, policy: Policy, state: State, now: float) -> None:
        self._policy, self._state, self._now = policy, state, now
        self._tries = 0
        self.as_it_is: Plan = plan(policy, state, now)

    def kept_from(self) -> list[float]:
        """When what is reserved, and the windows to come, begin."""
        reserved = self.as_it_is.reservations
        windows = upcoming(self._policy, self._now)
        return [each.at for each in reserved if each.at] + [window.start for window in windows]

    def about(self, change: str, value: int | float | str, changed: Request) -> Remedy | None:
        """What the change would do, or None if it would not start."""
        if self._tries >= MOST_TRIES:
            return None
        self._tries += 1
        # With other tags it is launched again, and has not waited then.
        changed = replace(changed, submitted=self._now, preempted=0, promised=None)
        requests = [changed if each.id == changed.id else each for each in self._state.requests]
        decided = plan(self._policy, replace(self._state, requests=requests), self._now)
        for start in decided.starts:
            if start.request.id == changed.id:
                return Remedy(change, value, start.pool, start.gpus)
        for each in decided.preemptions:
            if each.request.id == changed.id and not each.awaits_approval:
                stops = tuple(victim.lease.id for victim in each.victims)
                return Remedy(change, value, each.promise.pool, each.promise.gpus, stops)
        return None


def _less_declared(
    what: str, snapshots: tuple[Snapshot, ...], request: Request
) -> Iterator[tuple[str, float, Request]]:
    """What the ceiling of its team leaves of ``cpus`` or ``memory_gib``, if that is less than it declares.

    It comes before some of those that start now, and after others: what is left at each of these
    moments is tried, the most first.
    """
    left = {
        _in_round_numbers(most * (1 + SLACK) - used)
        for snapshot in snapshots
        for of, used, most in snapshot.ceilings.of_team(request.team)
        if of == what
    }
    for amount in sorted(left, reverse=True):
        if amount < getattr(request, what):
            changed: dict[str, Any] = {what: amount}
            yield what, amount, replace(request, **changed)


def _in_round_numbers(amount: float) -> float:
    """No more than the amount: a whole number, below 1 in hundredths, and never below 0."""
    return float(math.floor(amount)) if amount >= 1 else max(0, math.floor(amount * 100)) / 100


def _fewer_gpus(snapshot: Snapshot, request: Request) -> Iterator[tuple[str, int, Request]]:
    """The most that is less, first: what is free, halves, and what nodes have."""
    least = request.sizes[-1]
    sizes = {ONE_GPU, least - ONE_GPU}
    half = least // 2
    while half > ONE_GPU:
        sizes.add(half // ONE_GPU * ONE_GPU)
        half //= 2
    for pool in snapshot.pools(request):
        room, holding = snapshot.room(pool), snapshot.accounts.holding(request, pool)
        sizes.update(room.nodes.sizes.values())
        sizes.update((int(room.surely_fits(frozenset())), snapshot.free_for(holding)))
        sizes.add(holding.quota - holding.taken)
    # What asks for whole GPUs goes on with whole ones, and with its split.
    step = request.gpus_per_node or (ONE_GPU if least >= ONE_GPU else 1)
    for gpus in sorted({size // step * step for size in sizes}, reverse=True):
        if 0 < gpus < least:
            yield "gpus", gpus, replace(request, gpus=gpus, min_gpus=None)


def _other_pools(policy: Policy, request: Request) -> Iterator[tuple[str, str, Request]]:
    """Those that could ever hold it."""
    for pool in policy.pools:
        alone = replace(request, pools=(pool,), promised=None)
        if pool not in request.pools and why_never(policy, alone) is None:
            yield "pool", pool, replace(request, pools=(*request.pools, pool))


def _other_tiers(policy: Policy, request: Request) -> Iterator[tuple[str, str, Request]]:
    """Those that its team may ask for, the nearest in points first."""
    team = policy.teams.get(request.team)
    if team is None or request.tier not in policy.tiers:
        return
    points = policy.tiers[request.tier].points
    tiers = [tier for tier in team.tiers if tier in policy.tiers and tier != request.tier]
    for tier in sorted(tiers, key=lambda tier: (abs(policy.tiers[tier].points - points), tier)):
        yield "tier", tier, replace(request, tier=tier)


def _other_splits(policy: Policy, request: Request) -> Iterator[tuple[str, int, Request]]:
    """The largest parts first: a split over as few nodes as can be."""
    if not any(policy.pools[pool].nodes for pool in request.pools if pool in policy.pools):
        return
    gpus, now = request.sizes[-1], request.gpus_per_node
    parts = [
        gpus // count
        for count in (2, 4, 8, 16)
        if gpus % (count * ONE_GPU) == 0
        and all(size % (gpus // count) == 0 for size in request.sizes)
    ]
    for part in parts:
        if part != now:
            yield "gpus_per_node", part, replace(request, gpus_per_node=part)


def _shorter(
    request: Request, kept_from: list[float], now: float
) -> Iterator[tuple[str, float, Request]]:
    """The longest first: usual bounds, and what is over before something kept begins, with a margin."""
    left = [at - now for at in kept_from]
    usual = (length for length in DURATIONS if not any(_is_too_near(length, each) for each in left))
    before = (length for each in left if (length := _well_before(each)) > 0)
    for seconds in sorted({*usual, *before}, reverse=True):
        if request.max_duration is None or seconds < request.max_duration:
            yield "max_duration", seconds, replace(request, max_duration=seconds)


def _well_before(left: float) -> float:
    """What of the time left may be run in, in whole minutes: a bound of just that is soon untrue."""
    return (left - max(LEAST_MARGIN, MARGIN_PART * left)) // 60 * 60


def _is_too_near(length: float, left: float) -> bool:
    """Whether so long is over before what begins then, but no more once a person has launched it."""
    return _well_before(left) < length <= left


def _wait(snapshot: Snapshot, request: Request) -> Remedy | None:
    """The bound at which it fits as it is, if nobody else comes: earliest over its pools and sizes."""
    best: Remedy | None = None
    for pool in snapshot.pools(request):
        for gpus in request.sizes:
            holding = snapshot.accounts.holding(request, pool)
            asker = snapshot.asker(request, holding, gpus)
            if asker is None or not snapshot.within_ceilings(asker):
                continue
            leases = snapshot.running.in_pool(pool)
            opening = snapshot.calendar.earliest(asker, leases, attrgetter("ends"))
            if opening is not None and (best is None or opening.at < float(best.value)):
                best = Remedy("wait", opening.at, pool, gpus)
    return best
