"""What must always hold of a pass, judged plainly from the words of the design.

Nothing here is shared with the decision but its values. `Books` recounts a moment from its leases and
promises, by loops. Each function below it looks at one `Pass` and returns what is wrong with it, in
sentences; nothing if all is well.

A plan does not say in which order it decided its starts and its preemptions among each other. So what
is asked of a start is asked at the end of the pass, where it holds whatever the order was, and what is
asked of victims must hold after some number of the starts.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, permutations
from typing import NamedTuple

from dagster_gpufair.policy.in_force import granted, held, upcoming
from dagster_gpufair.policy.models import Policy, Tier
from dagster_gpufair.scheduling.model import (
    Account,
    Class,
    Lease,
    Plan,
    Points,
    Preemption,
    Promise,
    Request,
    Reservation,
    Start,
    State,
    Victim,
    Waiting,
)

GPU = 1000
WAITING_REASONS = frozenset(
    {
        "quota_exhausted",
        "borrow_limit",
        "reserve_held",
        "insufficient_gpus",
        "fragmented",
        "lower_priority",
        "preempting",
        "approval",
        "maintenance",
        "ceiling",
        "paused",
        "run_limit",
        "environment",
    }
)
NOT_FOR_SPACE = frozenset({"quota_exhausted", "borrow_limit", "ceiling", "reserve_held"})
WEIGHT_OF_THE_REST = 1.0
"""What the rest of a team weighs beside its projects."""


class Pass(NamedTuple):
    """One pass: what it was decided from, what was decided, and the state once that is carried out."""

    policy: Policy
    before: State
    now: float
    plan: Plan
    after: State

    @property
    def at_its_end(self) -> Books:
        """With all that a person is asked for done: what is decided is the same."""
        after = self.before.following(_agreed(self.plan), self.now, self.policy.grace)
        return Books(self.policy, after, self.now)


# Cards


def on_cards(parts: Iterable[int], cards: int) -> bool:
    """Whether parts fit on so many cards: whole cards each, and every fraction on one card."""
    parts = list(parts)
    cards -= sum(part // GPU for part in parts)
    fractions = sorted((part % GPU for part in parts if part % GPU), reverse=True)
    return cards >= 0 and _packs(fractions, [GPU] * min(cards, len(fractions)))


def _packs(fractions: list[int], left: list[int]) -> bool:
    if not fractions:
        return True
    first, *rest = fractions
    return any(
        _packs(rest, [*left[:card], left[card] - first, *left[card + 1 :]])
        for card in range(len(left))
        if left[card] >= first and left[card] not in left[:card]
    )


# Books


@dataclass(frozen=True)
class Books:
    """All numbers of one moment, counted from its leases and promises.

    A pool without nodes is counted as one big node without a name.
    """

    policy: Policy
    state: State
    now: float

    # What if

    def without(self, gone: Iterable[str]) -> Books:
        """The same once these leases, by id, have ended."""
        ids = set(gone)
        leases = [lease for lease in self.state.leases if lease.id not in ids]
        return replace(self, state=replace(self.state, leases=leases))

    def unpromised(self, *ids: str) -> Books:
        """The same if nothing were promised to these requests, and nobody left for them.

        If none are named, to none; then whoever is under notice leaves all the same.
        """
        requests = [
            replace(request, promised=None) if not ids or request.id in ids else request
            for request in self.state.requests
        ]
        leases = [
            replace(lease, notice_until=None, notice_for=None) if lease.notice_for in ids else lease
            for lease in self.state.leases
        ]
        return replace(self, state=replace(self.state, requests=requests, leases=leases))

    def keeping(self, reservations: Iterable[Reservation]) -> Books:
        """The same if what is free of the placements of these were taken."""
        books = self
        for at, kept in enumerate(reservations):
            if kept.of_quota:
                continue
            there = kept.nodes or {"": kept.gpus}
            nodes = {
                node: max(0, min(part, books.free_on(kept.pool, node)))
                for node, part in there.items()
                if node in books.ready(kept.pool)
            }
            gpus = sum(nodes.values())
            taken = Lease(f"kept {at}", "nobody", "none", kept.pool, gpus, self.now, nodes)
            state = replace(books.state, leases=[*books.state.leases, taken])
            books = replace(books, state=state)
        return books

    # Nodes

    def sizes(self, pool: str) -> Mapping[str, int]:
        nodes = self.policy.pools[pool].nodes
        return {"": self.policy.pools[pool].capacity} if nodes is None else nodes

    def ready(self, pool: str) -> list[str]:
        away = self.state.cordoned.get(pool, frozenset())
        return [node for node in self.sizes(pool) if node not in away]

    def leases(self, pool: str) -> list[Lease]:
        return [lease for lease in self.state.leases if lease.pool == pool]

    def promises(self, pool: str) -> list[tuple[Request, Promise]]:
        return [
            (request, request.promised)
            for request in self.state.requests
            if request.promised is not None and request.promised.pool == pool
        ]

    def leaves(self, lease: Lease) -> bool:
        """Whether it is under notice, or over before anybody who is given notice has to be gone."""
        return lease.notice_until is not None or self.ends_soon(lease)

    def ends_soon(self, lease: Lease) -> bool:
        """Whether it is over before anybody given notice has to be gone; not what is long overdue."""
        grace = self.policy.grace(lease.pool)
        return lease.ends is not None and abs(lease.ends - self.now) <= grace

    def parts_on(self, pool: str, node: str, held: Iterable[Lease | Promise]) -> list[int]:
        """The GPUs of each of these on the node."""
        return [each.nodes.get(node, 0) if node else each.gpus for each in held]

    def held_on(self, pool: str, node: str) -> list[int]:
        return self.parts_on(pool, node, self.leases(pool))

    def kept_on(self, pool: str, node: str) -> int:
        """Of what is promised there, what those that leave do not free."""
        promised = self.parts_on(pool, node, [promise for _, promise in self.promises(pool)])
        leaving = [lease for lease in self.leases(pool) if self.leaves(lease)]
        return max(0, sum(promised) - sum(self.parts_on(pool, node, leaving)))

    def free_on(self, pool: str, node: str) -> int:
        held = sum(self.held_on(pool, node))
        return self.sizes(pool)[node] - held - self.kept_on(pool, node)

    def fit_on(self, pool: str, node: str, more: Iterable[int] = ()) -> bool:
        """Whether the leases there and so many more lie on the node's cards: now, and beside all
        promises once those that leave have left."""
        more, cards = list(more), self.sizes(pool)[node] // GPU
        staying = [lease for lease in self.leases(pool) if not self.leaves(lease)]
        promised = self.parts_on(pool, node, [promise for _, promise in self.promises(pool)])
        then = self.parts_on(pool, node, staying) + promised
        return on_cards([*self.held_on(pool, node), *more], cards) and on_cards(
            [*then, *more], cards
        )

    def has_free(self, promise: Promise) -> bool:
        """Whether a promise's own placement is free."""
        nodes = promise.nodes or {"": promise.gpus}
        return all(self.fit_on(promise.pool, node, [part]) for node, part in nodes.items())

    def has_shape(self, pool: str, gpus: int, per_node: int | None) -> bool:
        """Whether the ready nodes have so many free in the shape that is asked for."""
        return any(
            all(self.fit_on(pool, node, [part]) for node, part in nodes.items())
            for nodes in self._placements(pool, gpus, per_node)
        )

    def _placements(self, pool: str, gpus: int, per_node: int | None) -> Iterator[dict[str, int]]:
        """All ways to lay it on ready nodes, full or not."""
        sizes, ready = self.sizes(pool), self.ready(pool)
        if "" in sizes or (not per_node and gpus <= max(sizes.values())):
            yield from ({node: gpus} for node in ready)
        elif per_node:
            parts = [per_node] * (gpus // per_node) + [gpus % per_node] * (gpus % per_node > 0)
            for nodes in permutations(ready, len(parts)):
                yield dict(zip(nodes, parts, strict=True))
        else:
            for count in range(1, len(ready) + 1):
                for whole in combinations(ready, count):
                    rest = gpus - sum(sizes[node] for node in whole)
                    if rest == 0:
                        yield {node: sizes[node] for node in whole}
                    for node in ready:
                        if rest > 0 and node not in whole:
                            yield {**{each: sizes[each] for each in whole}, node: rest}

    # The pool as a whole

    def in_lane(self, pool: str, of: Request | Lease, gpus: int) -> bool:
        """Whether the fast lane is for it."""
        lane = self.policy.fast_lane.get(pool)
        return (
            lane is not None
            and gpus <= lane.max_gpus
            and of.max_duration is not None
            and of.max_duration <= lane.max_duration.total_seconds()
        )

    def lane_left(self, pool: str) -> int:
        if pool not in self.policy.fast_lane:
            return 0
        there = [lease for lease in self.leases(pool) if self.in_lane(pool, lease, lease.gpus)]
        used = _gpus(there)
        for request, promise in self.promises(pool):
            if self.in_lane(pool, request, promise.gpus):
                leaving = _gpus(lease for lease in there if lease.notice_for == request.id)
                used += max(0, promise.gpus - leaving)
        return max(0, self.policy.fast_lane[pool].gpus - used)

    def free(self, pool: str, *, lane: bool = False) -> int:
        """Free GPUs of the pool; with those of the lane, or without."""
        free = sum(self.free_on(pool, node) for node in self.ready(pool))
        return free if lane else free - self.lane_left(pool)

    # Accounts

    def account(self, of: Request | Lease, pool: str) -> Account:
        project = of.project if of.project in self.projects(of.team, pool) else None
        return Account(of.team, project)

    def projects(self, team: str, pool: str) -> list[str]:
        """The team's projects with a quota in the pool, or any grant."""
        if team not in self.policy.teams:
            return []
        return [
            name
            for name, project in self.policy.teams[team].projects.items()
            if project.quota.get(pool, 0)
            or any(
                (grant.team, grant.project, grant.pool) == (team, name, pool)
                for grant in self.policy.grants
            )
        ]

    def accounts(self, team: str, pool: str) -> list[Account]:
        return [Account(team), *(Account(team, name) for name in self.projects(team, pool))]

    @cached_property
    def _granted(self) -> Mapping[tuple[str, str | None, str], int]:
        return granted(self.policy, self.now)

    @cached_property
    def _windows(self) -> Mapping[tuple[str, str], int]:
        return held(self.policy, self.now)

    def team_quota(self, team: str, pool: str) -> int:
        """With all grants and windows in force."""
        if team not in self.policy.teams:
            return 0
        to_team = [gpus for key, gpus in self._granted.items() if (key[0], key[2]) == (team, pool)]
        window = self._windows.get((team, pool), 0)
        return self.policy.teams[team].quota.get(pool, 0) + sum(to_team) + window

    def quota(self, account: Account, pool: str) -> int:
        team, project = account
        if project is not None:
            own = self.policy.teams[team].projects[project].quota.get(pool, 0)
            return own + self._granted.get((team, project, pool), 0)
        of_projects = [self.quota(Account(team, name), pool) for name in self.projects(team, pool)]
        return self.team_quota(team, pool) - sum(of_projects)

    def use(self, account: Account, pool: str) -> int:
        """GPUs in its leases, and what is promised to it beside its own that leave for that."""
        return self._used(pool, lambda of: self.account(of, pool) == account)

    def team_use(self, team: str, pool: str) -> int:
        return self._used(pool, lambda of: of.team == team)

    def _used(self, pool: str, counts: Callable[[Request | Lease], bool]) -> int:
        its = [lease for lease in self.leases(pool) if counts(lease)]
        used = _gpus(its)
        for request, promise in self.promises(pool):
            if counts(request):
                leaving = _gpus(lease for lease in its if lease.notice_for == request.id)
                used += max(0, promise.gpus - leaving)
        return used

    # Held back

    def held_from(self, account: Account, pool: str) -> int:
        """What the account must leave to others: to other teams, and to its team's projects."""
        others = [name for name in self.policy.teams if name != account.team]
        siblings = [each for each in self.accounts(account.team, pool) if each != account]
        return sum(self._held_by_team(name, pool) for name in others) + sum(
            self._held_by(each, pool) for each in siblings
        )

    def _held_by_team(self, team: str, pool: str) -> int:
        """What a team holds back from other teams."""
        by_account = sum(self._held_by(account, pool) for account in self.accounts(team, pool))
        for_good, with_all = self._unlent(Account(team), pool, whole=True)
        unlent = self._within_pool(for_good, with_all, pool)
        return max(unlent - self.team_use(team, pool), by_account, 0)

    def _held_by(self, account: Account, pool: str) -> int:
        """What a project holds back from everyone else. The rest of a team has no rule of its own."""
        if account.project is None:
            return 0
        unlent = self._within_pool(*self._unlent(account, pool), pool)
        return max(0, unlent - self.use(account, pool))

    def _unlent(self, account: Account, pool: str, *, whole: bool = False) -> tuple[int, int]:
        """What a team as one, or a project, does not lend: of its quota, and of all that is in force."""
        team, project = account
        written = self.policy.teams[team]
        window = self._windows.get((team, pool), 0) if whole else 0
        rule = written if project is None else written.projects[project]
        own = rule.quota.get(pool, 0)
        quota = self.team_quota(team, pool) - window if whole else self.quota(account, pool)
        for_good = max(0, own - rule.lend_limit.get(pool, own))
        with_all = max(0, quota - rule.lend_limit.get(pool, quota)) + window
        return self._as_ready(for_good, pool), self._as_ready(with_all, pool)

    def _within_pool(self, for_good: int, with_all: int, pool: str) -> int:
        """Grants and windows keep no more than what the quotas leave of the pool, each by its part."""
        kept = wanted = 0
        for team in self.policy.teams:
            projects = [
                self._unlent(Account(team, name), pool) for name in self.projects(team, pool)
            ]
            lasting, extra = self._unlent(Account(team), pool, whole=True)
            of_team = max(lasting, sum(each for each, _ in projects))
            kept += of_team
            wanted += max(extra, sum(each for _, each in projects)) - of_team
        ready = sum(self.sizes(pool)[node] for node in self.ready(pool))
        room = max(0, ready - kept)
        if wanted <= room:
            return with_all
        beyond = max(0, with_all - for_good)
        return with_all - beyond + beyond * room // wanted

    def _as_ready(self, gpus: int, pool: str) -> int:
        """Scaled down with the pool when less than all quotas is ready; grants and windows are on top."""
        ready = sum(self.sizes(pool)[node] for node in self.ready(pool))
        quotas = sum(team.quota.get(pool, 0) for team in self.policy.teams.values())
        return gpus * ready // quotas if ready < quotas else gpus

    # What quotas cover

    def borrowed_inside(self, team: str, pool: str) -> set[str]:
        """The team's leases, by id, that their own accounts' quotas do not cover."""
        borrowed: set[str] = set()
        for account in self.accounts(team, pool):
            its = [lease for lease in self.leases(pool) if self.account(lease, pool) == account]
            borrowed |= self._uncovered(its, self.quota(account, pool))
        return borrowed

    def borrowed_from_teams(self, team: str, pool: str) -> set[str]:
        """Of those, the ones that the rest of the team's quota does not cover either."""
        inside = self.borrowed_inside(team, pool)
        its = [lease for lease in self.leases(pool) if lease.team == team]
        covered = [
            lease.gpus for lease in its if lease.id not in inside and lease.notice_until is None
        ]
        left = self.team_quota(team, pool) - sum(covered)
        return self._uncovered([lease for lease in its if lease.id in inside], left)

    def _uncovered(self, leases: Sequence[Lease], quota: int) -> set[str]:
        """Higher tiers are covered first, then older leases; those under notice take nothing up."""
        uncovered = set()
        for lease in sorted(leases, key=lambda each: (-self.points(each), each.started, each.id)):
            if lease.gpus <= quota and lease.notice_until is None:
                quota -= lease.gpus
            else:
                uncovered.add(lease.id)
        return uncovered

    # Rules

    def tier(self, of: Request | Lease) -> Tier:
        return self.policy.tiers[of.tier]

    def points(self, of: Request | Lease) -> float:
        return self.tier(of).points

    def covered_by(self, request: Request, pool: str, gpus: int) -> Class:
        """Whose quota covers so many more, whatever its tier."""
        account = self.account(request, pool)
        if self.use(account, pool) + gpus <= self.quota(account, pool):
            return Class.GUARANTEED
        if self.team_use(account.team, pool) + gpus <= self.team_quota(account.team, pool):
            return Class.SHARED
        return Class.BORROWING

    def class_of(self, request: Request, pool: str, gpus: int) -> Class:
        urgent = self.tier(request).may_preempt
        return Class.URGENT if urgent else self.covered_by(request, pool, gpus)

    def allows(self, request: Request, pool: str, gpus: int) -> bool:
        """Whether the rules let it have so many more, wherever they come from."""
        return self._within_ceilings(request) and self._within_limits(request, pool, gpus)

    def _within_limits(self, request: Request, pool: str, gpus: int) -> bool:
        class_, account = self.class_of(request, pool, gpus), self.account(request, pool)
        if class_ <= Class.GUARANTEED:
            return True
        rules = self.policy.borrowing_rules(account.team, pool)
        if class_ is Class.BORROWING and (
            rules.mode == "off"
            or (rules.tiers != "all" and request.tier not in rules.tiers)
            or (rules.kinds != "all" and request.kind not in rules.kinds)
            or self._overage(self.team_use(account.team, pool) + gpus, account.team, pool)
            > self.policy.teams[account.team].borrow_limit.get(pool, math.inf)
        ):
            return False
        if account.project is None:
            return True
        project = self.policy.teams[account.team].projects[account.project]
        overage = self.use(account, pool) + gpus - self.quota(account, pool)
        return overage <= project.borrow_limit.get(pool, math.inf)

    def _overage(self, use: int, team: str, pool: str) -> int:
        return use - self.team_quota(team, pool)

    def _within_ceilings(self, request: Request) -> bool:
        ceilings = self.policy.teams[request.team].ceilings
        theirs = [lease for lease in self.state.leases if lease.team == request.team]
        cpus = sum(lease.cpus for lease in theirs) + request.cpus
        memory = sum(lease.memory_gib for lease in theirs) + request.memory_gib
        return not (
            (ceilings.cpus is not None and cpus > ceilings.cpus and request.cpus)
            or (
                ceilings.memory_gib is not None
                and memory > ceilings.memory_gib
                and request.memory_gib
            )
        )

    def may_start(self, request: Request, pool: str, gpus: int) -> bool:
        """Whether the rules let it, enough is free beyond what others hold back, and the shape fits."""
        if pool not in self.policy.pools or not self.allows(request, pool, gpus):
            return False
        free = self.free(pool, lane=self.in_lane(pool, request, gpus))
        return gpus <= free - self.held_from(self.account(request, pool), pool) and self.has_shape(
            pool, gpus, request.gpus_per_node
        )

    def left_beside_promises(self, pool: str) -> Iterator[int]:
        """What is left over beside each promise once all that leaves has left, and others hold back more."""
        then = self.without(lease.id for lease in self.leases(pool) if self.leaves(lease))
        for request, promise in then.promises(pool):
            lane = then.in_lane(pool, request, promise.gpus)
            yield then.free(pool, lane=lane) - then.held_from(then.account(request, pool), pool)

    # Fair shares

    def team_load(self, team: str, pool: str, more: int) -> float:
        """The team's overage, and so many more, by its effective weight."""
        weights = {name: each.weight for name, each in self.policy.teams.items()}
        used: dict[str, float] = {}
        for (account, its_pool), hours in self.state.used.items():
            if its_pool == pool:
                used[account.team] = used.get(account.team, 0.0) + hours
        over = max(0, self._overage(self.team_use(team, pool) + more, team, pool))
        return over / GPU / self._effective_weight(team, weights, used)

    def account_load(self, account: Account, pool: str, more: int) -> float:
        """The same of an account among those of its team."""
        weights = {None: WEIGHT_OF_THE_REST} | {
            name: self.policy.teams[account.team].projects[name].weight
            for name in self.projects(account.team, pool)
        }
        used = {
            each.project: hours
            for (each, its_pool), hours in self.state.used.items()
            if its_pool == pool and each.team == account.team
        }
        over = max(0, self.use(account, pool) + more - self.quota(account, pool))
        return over / GPU / self._effective_weight(account.project, weights, used)

    def _effective_weight(self, of: object, weights: Mapping, used: Mapping) -> float:
        due = weights[of] / math.fsum(weights.values())
        everything = math.fsum(used.values())
        had = used.get(of, 0.0) / everything if everything else 0.0
        factor = 1 + self.policy.fair_share.strength * (due - had) / due
        return weights[of] * max(0.25, min(4.0, factor))


# 1. Capacity


def over_capacity(done: Pass) -> list[str]:
    """Starts and promises lie on ready nodes, within them, and every fraction on one card."""
    before, after = Books(done.policy, done.before, done.now), done.at_its_end
    wrong = [
        f"{pool} node {node!r} is over: {after.held_on(pool, node)} and {after.kept_on(pool, node)} kept"
        for pool in done.policy.pools
        for node in after.sizes(pool)
        if _is_sound(before, pool, node) and not _is_sound(after, pool, node)
    ]
    for start in done.plan.starts:
        if start.pool not in start.request.pools or start.gpus not in start.request.sizes:
            wrong.append(f"{start.request.id} did not ask for {start.gpus} of {start.pool}")
        wrong += _misplaced(after, start.request.id, start)
    for preemption in done.plan.preemptions:
        wrong += _misplaced(after, preemption.request.id, preemption.promise)
    return wrong


def _is_sound(books: Books, pool: str, node: str) -> bool:
    held = sum(books.held_on(pool, node)) + books.kept_on(pool, node)
    return held <= books.sizes(pool)[node] and books.fit_on(pool, node)


def on_wrong_cards(done: Pass) -> list[str]:
    """Whatever starts has cards for just its GPUs, and shares none beyond what is left of it."""
    wrong = [problem for start in done.plan.starts for problem in _on_other_cards(start)]
    return [*wrong, *_shared_beyond_themselves(done)]


def _on_other_cards(start: Start) -> Iterator[str]:
    """Where a start has not cards for just its GPUs, whole ones and one that it shares at most."""
    on_cards = {node: sum(gpus for _, gpus in cards) for node, cards in start.cards.items()}
    if on_cards != (dict(start.nodes) or {"": start.gpus}):
        yield f"{start.request.id} has {dict(start.cards)} for {dict(start.nodes)}"
    for node, cards in start.cards.items():
        if len({card for card, _ in cards}) < len(cards) or len(cards) != -(-on_cards[node] // GPU):
            yield f"{start.request.id} has {cards} on node {node!r}"


def _shared_beyond_themselves(done: Pass) -> Iterator[str]:
    """Cards that a start has though others use more than the rest of them."""
    started = {start.request.id for start in done.plan.starts}
    used: Counter[tuple[str, str, int]] = Counter()
    for lease in done.before.after(done.plan.starts, done.now).leases:
        for node, cards in lease.cards.items():
            for card, gpus in cards:
                used[lease.pool, node, card] += gpus
                if lease.id in started and used[lease.pool, node, card] > GPU:
                    yield f"{lease.id} shares card {card} of node {node!r} beyond what it has"


def _misplaced(books: Books, id: str, placed: Start | Promise) -> Iterator[str]:
    if books.policy.pools[placed.pool].nodes is None:
        if placed.nodes:
            yield f"{id} is on nodes of a pool that has none"
        return
    if sum(placed.nodes.values()) != placed.gpus:
        yield f"{id} has {dict(placed.nodes)} for {placed.gpus}"
    if not set(placed.nodes) <= set(books.ready(placed.pool)):
        yield f"{id} is on nodes that are not ready: {dict(placed.nodes)}"


# 2. Held-back


def invaded(done: Pass) -> list[str]:
    """Whoever starts leaves what others hold back.

    This holds when it has started. Of the preemptions, those before it count: some of them, in their order.
    """
    wrong = []
    for at, start in enumerate(done.plan.starts):
        moments = [
            _moment(done, at + 1, preemptions)
            for preemptions in range(len(done.plan.preemptions) + 1)
        ]
        left = max(_left_beside_others(books, start) for books in moments)
        if left < 0:
            wrong.append(f"{start.request.id} takes {-left} of {start.pool} held for others")
    return wrong


def _left_beside_others(books: Books, start: Start) -> int:
    """What is free for one that has started, less all that others hold back."""
    lane = books.in_lane(start.pool, start.request, start.gpus)
    account = books.account(start.request, start.pool)
    return books.free(start.pool, lane=lane) - books.held_from(account, start.pool)


# 3. Victims


def wrong_victims(done: Pass) -> list[str]:
    """Every victim may be one, by the rule that is named; each is needed, and together they suffice."""
    wrong = []
    askers = [preemption.request.id for preemption in done.plan.preemptions]
    victims = [
        victim.lease.id for preemption in done.plan.preemptions for victim in preemption.victims
    ]
    started = {start.request.id for start in done.plan.starts}
    if len(set(askers)) < len(askers) or set(askers) & started:
        wrong.append(f"some ask twice, or start as well: {askers}, started {sorted(started)}")
    if len(set(victims)) < len(victims):
        wrong.append(f"some are victims twice: {victims}")
    for at, preemption in enumerate(done.plan.preemptions):
        wrong += _unguarded(done, preemption)
        moments = [_moment(done, starts, at) for starts in range(len(done.plan.starts) + 1)]
        found = [list(_unfounded(done, books, preemption)) for books in moments]
        wrong += min(found, key=len)
    return wrong


def _unguarded(done: Pass, preemption: Preemption) -> Iterator[str]:
    """Victims that are protected whatever the rule."""
    asker = preemption.request.id
    rules = done.policy.stop_rules(preemption.promise.pool)
    leases = {lease.id: lease for lease in done.before.leases}
    if not preemption.victims:
        yield f"{asker} preempts nobody"
    others = [victim for victim in preemption.victims if victim.rule != "term"]
    if rules.askers != "all" and preemption.request.tier not in rules.askers:
        yield f"{asker} preempts, and its tier is not among the askers"
    if others and rules.mode == "off":
        yield f"{asker} preempts {_ids(others)} though preemption is off"
    if preemption.awaits_approval is not (rules.mode == "approval" and bool(others)):
        yield f"{asker}: awaits_approval is {preemption.awaits_approval} in mode {rules.mode}"
    for lease, rule in preemption.victims:
        if lease.id not in leases:
            yield f"{asker}: its victim {lease.id} holds nothing"
            continue
        lease = leases[lease.id]
        notice_ended = lease.notice_for in done.plan.withdrawn
        if lease.pool != preemption.promise.pool:
            yield f"{asker}: {lease.id} is in another pool"
        if lease.notice_until is not None and not notice_ended:
            yield f"{asker}: {lease.id} is under notice already"
        if done.policy.tiers[lease.tier].preemptible == "never":
            yield f"{asker}: {lease.id} may never be stopped ({rule})"
        if done.now - lease.started < rules.min_runtime.total_seconds():
            yield f"{asker}: {lease.id} has not run long enough ({rule})"


def _moment(done: Pass, starts: int, preemptions: int) -> Books:
    """After so many of the starts, and so many of the preemptions, of the pass.

    Who starts elsewhere than promised keeps the promise until then, and its victims' notices.
    """
    later = {start.request.id for start in done.plan.starts[starts:]}
    withdrawn = [id for id in done.plan.withdrawn if id not in later]
    stay = {*done.plan.spared}
    stay |= {victim.lease.id for each in done.plan.preemptions for victim in each.victims}
    plan = Plan(
        starts=done.plan.starts[:starts],
        waiting=(),
        preemptions=done.plan.preemptions[:preemptions],
        withdrawn=withdrawn,
        spared=[
            lease.id
            for lease in done.before.leases
            if lease.notice_for in withdrawn and lease.id in stay
        ],
    )
    after = done.before.following(_agreed(plan), done.now, done.policy.grace)
    return Books(done.policy, after, done.now)


def _agreed(plan: Plan) -> Plan:
    """The plan once a person has agreed to all of it."""
    preemptions = [replace(each, awaits_approval=False) for each in plan.preemptions]
    return replace(plan, preemptions=preemptions)


def _unfounded(done: Pass, books: Books, preemption: Preemption) -> Iterator[str]:
    """What is wrong with one's victims at a moment."""
    request, promise, victims = preemption.request, preemption.promise, preemption.victims
    broken = [victim for victim in victims if not _rule_holds(books, preemption, victim, victims)]
    for victim in broken:
        yield f"{request.id}: {victim.rule} does not hold for {victim.lease.id}"
    gone = [victim.lease.id for victim in victims]
    leaving = [lease.id for lease in books.state.leases if books.leaves(lease)]
    then = books.without([*gone, *leaving])
    if not then.may_start(request, promise.pool, promise.gpus):
        yield f"{request.id} does not fit once {gone} have left"
    elif not then.has_free(promise):
        yield f"{request.id} does not fit where it is promised once {gone} have left"
    elif not broken:
        yield from _needless(done, books, preemption)


def _needless(done: Pass, books: Books, preemption: Preemption) -> Iterator[str]:
    """Victims without which the request fits as well.

    Where others wait for room too, they may have had their turns before, and reserved what ends; only that
    it could start is wrong whoever else waits.
    """
    request, promise, victims = preemption.request, preemption.promise, preemption.victims
    if surely_starts(done, books, request):
        yield f"{request.id} preempts, though it could start"
        return
    if any(
        promise.pool in other.pools and other.id != request.id and other.promised is None
        for other in done.after.requests
    ):
        return
    ending = _over_by_then(books)
    if _surely_fits(done, books.without(ending), request, promise.pool, promise.gpus):
        yield f"{request.id} preempts, though it could start once {ending} end within the grace period"
    for victim in victims:
        others = [other for other in victims if other is not victim]
        rest = books.without([*ending, *_ids(others)])
        if all(_rule_holds(books, preemption, other, others) for other in others) and _surely_fits(
            done, rest, request, promise.pool, promise.gpus
        ):
            yield f"{request.id} does not need {victim.lease.id} beside {_ids(others)}"


def _over_by_then(books: Books) -> list[str]:
    """The leases, by id, that end before those who are given notice now have to be gone."""
    return [lease.id for lease in books.state.leases if books.ends_soon(lease)]


def _rule_holds(
    books: Books, preemption: Preemption, victim: Victim, victims: Sequence[Victim]
) -> bool:
    """Whether the rule that is named lets the request stop this lease, among these victims."""
    request, pool, gpus = preemption.request, preemption.promise.pool, preemption.promise.gpus
    lease, asker = victim.lease, books.account(preemption.request, pool)
    owner = books.account(lease, pool)
    same_team = owner.team == asker.team
    its_borrowed = books.borrowed_inside if same_team else books.borrowed_from_teams
    borrowed = lease.id in its_borrowed(owner.team, pool)
    fewer_points = books.points(lease) < books.points(request)
    soft = borrowed or books.tier(lease).preemptible == "always"
    # Its own account's victims, and its siblings', make room in the quotas too, and what is over by then.
    gone = [each.lease for each in victims]
    over = set(_over_by_then(books))
    by_then = gone + [each for each in books.leases(pool) if each.id in over]
    if victim.rule == "reclaim":
        return owner != asker and borrowed and _covers(books, asker, pool, gpus, by_then, same_team)
    if victim.rule == "priority":
        return owner == asker and fewer_points and soft
    if victim.rule == "urgent":
        return books.tier(request).may_preempt and fewer_points and soft
    if victim.rule == "rebalance":
        return (
            books.policy.stop_rules(pool).rebalance
            and owner != asker
            and borrowed
            and not _covers(books, asker, pool, gpus, gone, same_team)
            and books.points(request) >= books.points(lease)
            and _fairer(books, asker, owner, pool, gpus, victims)
        )
    if victim.rule == "term":
        longest = books.policy.borrowing_rules(lease.team, pool).max_duration
        since = lease.started if lease.term_from is None else lease.term_from
        return longest is not None and borrowed and books.now - since >= longest.total_seconds()
    return False


def _covers(
    books: Books, asker: Account, pool: str, gpus: int, gone: Sequence[Lease], own: bool
) -> bool:
    """Whether the account's own quota, or that of its team, holds so many more once these are gone."""
    if own:
        left = _gpus(each for each in gone if books.account(each, pool) == asker)
        return books.use(asker, pool) - left + gpus <= books.quota(asker, pool)
    left = _gpus(each for each in gone if each.team == asker.team)
    return books.team_use(asker.team, pool) - left + gpus <= books.team_quota(asker.team, pool)


def _fairer(
    books: Books,
    asker: Account,
    owner: Account,
    pool: str,
    gpus: int,
    victims: Sequence[Victim],
) -> bool:
    """Whether after the swap the asker's overage by weight is not above the victim's account's."""
    after = books.without([*_over_by_then(books), *_ids(victims)])
    if asker.team == owner.team:
        return after.account_load(asker, pool, gpus) <= after.account_load(owner, pool, 0) + 1e-9
    return after.team_load(asker.team, pool, gpus) <= after.team_load(owner.team, pool, 0) + 1e-9


def _ids(victims: Iterable[Victim]) -> list[str]:
    return [victim.lease.id for victim in victims]


def _gpus(leases: Iterable[Lease]) -> int:
    return sum(lease.gpus for lease in leases)


# 4. Work-conserving


def surely_starts(done: Pass, books: Books, request: Request) -> bool:
    """Whether it has room in some pool and size, beyond all that is held for anyone."""
    return any(
        _surely_fits(done, books, request, pool, gpus)
        for pool in request.pools
        for gpus in request.sizes
    )


def _surely_fits(done: Pass, books: Books, request: Request, pool: str, gpus: int) -> bool:
    """Whether so many are free beyond promises, others' reservations and windows, and held-back.

    What is held is taken at its largest: there may be room in other ways, but here there is for sure.
    """
    if pool not in done.policy.pools or request.id in done.before.blocked:
        return False
    others = [
        kept
        for kept in done.plan.reservations
        if kept.pool == pool and kept.request.id != request.id
    ]
    account = books.account(request, pool)
    ends = math.inf if request.max_duration is None else done.now + request.max_duration
    if (
        (others and not done.policy.backfill.enabled)
        or any(kept.of_quota and books.account(kept.request, pool) == account for kept in others)
        or any(
            kept.class_ is Class.GUARANTEED
            and books.account(kept.request, pool) == account
            and books.use(account, pool) + gpus + kept.gpus > books.quota(account, pool)
            for kept in others
        )
        or any(
            window.pool == pool and window.start < ends
            for window in upcoming(done.policy, done.now)
        )
        or any(
            grant.pool == pool and done.now < grant.start.timestamp() < ends
            for grant in done.policy.grants
        )
    ):
        return False
    books = books.unpromised(request.id)
    return books.keeping(others).may_start(request, pool, gpus) and all(
        gpus <= left for left in books.left_beside_promises(pool)
    )


def idle_room(done: Pass) -> list[str]:
    """Nothing waits that has room; and what waits for others' rank alone has room but for that.

    What was promised is the asker's once its victims have left, whatever is reserved.
    """
    books, reasons = done.at_its_end, done.plan.reasons()
    noticed_for = {lease.notice_for for lease in done.after.leases}
    wrong = []
    for request in done.after.requests:
        reason = reasons.get(request.id, "nothing")
        promise, alone = request.promised, books.unpromised(request.id)
        if (
            promise is not None
            and request.id not in noticed_for
            and request.id not in done.before.blocked
            and alone.may_start(request, promise.pool, promise.gpus)
            and alone.has_free(promise)
        ):
            wrong.append(f"{request.id} waits for {reason}, but all its victims have left")
        if reason != "lower_priority" and surely_starts(done, books, request):
            wrong.append(f"{request.id} waits for {reason}, but has room")
        # What recurs may leave it no place ever: then that is the reason, whatever else is used.
        recurs = any(
            window.cron is not None and window.pool in request.pools
            for window in done.policy.windows
        )
        is_rank = recurs or _has_room_but_for_rank(books, request)
        if reason == "lower_priority" and not is_rank:
            wrong.append(f"{request.id} waits for lower_priority, but has no room at all")
    return wrong


def _has_room_but_for_rank(books: Books, request: Request) -> bool:
    """Whether it could start were it not for reservations, promises, the lane and windows."""
    no_lane = books.policy.model_copy(update={"fast_lane": {}})
    moments = [replace(books, policy=no_lane).unpromised(request.id)]
    moments.append(moments[0].unpromised())
    return any(
        moment.may_start(request, pool, gpus)
        or (
            # Held back is less while promises count as use, and more is free once they do not.
            pool in books.policy.pools
            and moments[0].allows(request, pool, gpus)
            and gpus
            <= moments[1].free(pool) - moments[0].held_from(books.account(request, pool), pool)
            and moments[1].has_shape(pool, gpus, request.gpus_per_node)
        )
        for moment in moments
        for pool in request.pools
        for gpus in request.sizes
    )


# 9. Reasons


def unsound_reasons(done: Pass) -> list[str]:
    """Every request starts or waits, once, for one reason of the closed list, with a sentence."""
    wrong = []
    plan = done.plan
    decided = [start.request.id for start in plan.starts]
    decided += [request.id for group in plan.waiting for request in group.requests]
    if sorted(decided) != sorted(request.id for request in done.before.requests):
        wrong.append(f"decided are {sorted(decided)}")
    for group in plan.waiting:
        ids = [request.id for request in group.requests]
        allowed = WAITING_REASONS | {
            done.before.blocked[id][0] for id in ids if id in done.before.blocked
        }
        if group.reason not in allowed:
            wrong.append(f"{ids} wait for {group.reason!r}")
        if not group.message.strip():
            wrong.append(f"{ids} wait without a sentence")
    reasons = plan.reasons()
    awaiting = {each.request.id for each in plan.preemptions if each.awaits_approval}
    promised = {request.id for request in done.after.requests if request.promised is not None}
    for id, reason in reasons.items():
        if id in done.before.blocked:
            continue
        if (reason == "approval") is not (id in awaiting):
            wrong.append(f"{id} waits for {reason}, awaiting approval are {sorted(awaiting)}")
        if (reason == "preempting") is not (id in promised):
            wrong.append(f"{id} waits for {reason}, promised is something to {sorted(promised)}")
    return wrong


# 10. Reservations


def moved_later(earlier: Pass, later: Pass) -> list[str]:
    """Reservations with a known start that the next pass broke, though nothing better took their place.

    What was stopped comes back as a request, and may be better. Where a promise ends, what had to leave
    for it stays; then others' starts may have to be later. Who reserved its least stands by its most once
    that could start, in the class of that. Reservations are for each class: one that borrowed
    and no longer does has to do with those of its new class, and one that borrows holds nothing once it is
    not space that is missing, but room in a limit or beside what others hold back; beside a sibling's
    guaranteed reservation, only while it would be over by its start. A start that counts on
    stopping work may be later by a notice: nobody is stopped before the request fits with that alone.
    """
    if later.policy.stops_work:
        return []  # Such a start may count on work that could be stopped, and is not yet.
    wrong = []
    reasons = later.plan.reasons()
    classes = {
        request.id: group.class_ for group in later.plan.waiting for request in group.requests
    }
    for kept in earlier.plan.reservations:
        id = kept.request.id
        if kept.at is None or kept.of_quota or later.plan.withdrawn:
            continue
        if kept.gpus < kept.request.gpus:
            continue
        if kept.class_ is Class.BORROWING and (
            reasons.get(id) in NOT_FOR_SPACE
            or classes.get(id, kept.class_) is not kept.class_
            or any(
                each.class_ is Class.GUARANTEED
                and each.pool == kept.pool
                and each.request.team == kept.request.team
                for each in earlier.plan.reservations
            )
        ):
            continue
        latest = _starts_at_the_latest(later, id)
        # What is due already starts in the next pass, or has its victims leave then.
        due = later.now if kept.at <= earlier.now else kept.at
        if latest > due and not _yields(earlier, later, kept):
            wrong.append(
                f"{id} had {kept.pool} reserved from {kept.at - later.now:+g}, now {latest}"
            )
    return wrong


def _starts_at_the_latest(done: Pass, id: str) -> float:
    """When a request starts by a pass: now, when its victims have left, or as reserved."""
    if id not in {request.id for request in done.after.requests}:
        return done.now
    ends = [
        lease.notice_until
        for lease in done.after.leases
        if lease.notice_for == id and lease.notice_until is not None
    ]
    if ends:
        return max(ends)
    reserved = [
        math.inf if kept.at is None or kept.at <= done.now else kept.at
        for kept in done.plan.reservations
        if kept.request.id == id
    ]
    return min(reserved, default=math.inf)


def _yields(earlier: Pass, later: Pass, kept: Reservation) -> bool:
    """Whether something better than it takes anything new in its pool, or has its team's quota kept.

    Who has quota kept is better by its score, whatever the class. What a plan promises counts in what it
    says of ranks, so that who took something may have been better before.
    """
    plan = later.plan
    here = [each for each in plan.reservations if each.pool == kept.pool]
    if any(each.of_quota and each.request.team == kept.request.team for each in here):
        return True
    before = {
        (each.request.id, each.class_)
        for each in earlier.plan.reservations
        if not each.of_quota and each.at is not None
    }
    new = {(start.request.id, start.class_) for start in plan.starts if start.pool == kept.pool}
    new |= {(each.request.id, each.class_) for each in here}
    takers = {id for id, _ in new - before}
    takers |= {each.request.id for each in plan.preemptions if each.promise.pool == kept.pool}
    if len(kept.request.pools) > 1 and takers:
        return True  # A plan tells its rank in one of them only.
    return any(
        id in ranks and ranks[id] < ranks.get(kept.request.id, ())
        for ranks in (_ranks(earlier.plan), _ranks(later.plan))
        for id in takers
    )


def _ranks(plan: Plan) -> dict[str, tuple]:
    """What decides who comes first, the lower the better, for all requests of a plan."""
    ranks = {start.request.id: _rank(start.request, start, start.points) for start in plan.starts}
    for group in plan.waiting:
        for request in group.requests:
            ranks[request.id] = _rank(request, group, group.points_of(request))
    return ranks


def _rank(request: Request, stands: Start | Waiting, points: Points) -> tuple:
    borrows = stands.class_ is Class.BORROWING
    served = (stands.saturation, stands.inside) if borrows else (0.0, 0.0)
    return (stands.class_, *served, -points.score, request.submitted, request.id)
