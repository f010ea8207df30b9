"""Requests that are alike, in groups, so that a pass looks at few of them.

An `Ask` is all that decides whether a request can start: those with the same ask can or cannot alike.
A `Group` is requests with the same ask that also gain points alike, so that only their submission
orders them and time never changes that order. Only its first request is ever looked at.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Container, Hashable, Iterable, Iterator, Mapping
from math import inf, nextafter
from operator import attrgetter
from typing import Any

from dagster_gpufair.policy.quantities import ONE_GPU
from dagster_gpufair.scheduling.accounts.asker import Asker
from dagster_gpufair.scheduling.accounts.holding import Holding
from dagster_gpufair.scheduling.calendar.kept import Kept
from dagster_gpufair.scheduling.model import Blocked, Class, Lease, Request
from dagster_gpufair.scheduling.order import NEVER
from dagster_gpufair.scheduling.snapshot import Snapshot

_IN_ASK = (
    "team",
    "project",
    "pools",
    "tier",
    "kind",
    "gpus",
    "min_gpus",
    "gpus_per_node",
    "max_duration",
    "cpus",
    "memory_gib",
    "rejected",
)

_alike = attrgetter(*_IN_ASK, "preempted", "priority")
_all_but_submission = attrgetter(*_IN_ASK, "preempted", "priority", "source")
_submission = attrgetter("submitted", "id")

Likeness = tuple[tuple[Any, ...], Blocked | None, bool, tuple[str, ...], "str | None"]
"""What the requests of a group have in common, but for their source: what they ask, what blocks them,
whether they have waited long enough for a reservation, what slipped in before them, and, of one that was
promised something, its id.
"""

Choice = tuple[Holding, int]
"""An account in one of the pools, and how many GPUs."""


class Ask:
    """What some requests want alike. What was promised something is alone in its ask, and ``kept`` says what.

    ``wanted`` is every choice that they have, in order of liking; none if they are blocked from outside, or
    name a team or tier that is no more. ``choices`` are those that may still start: they stand in line by
    the first, for which ``nodes`` were free when last looked at. Where the first would borrow and a later
    one is guaranteed, they stand by that, as ``secures``: it is kept for the best of them, which then
    stands alone. Once there are no choices, they stand by ``stuck``: what they preempt or reserve for.
    """

    __slots__ = (
        "_snapshot",
        "blocked",
        "choices",
        "groups",
        "has_waited",
        "kept",
        "nodes",
        "per_node",
        "rights",
        "sample",
        "secures",
        "stuck",
        "wanted",
    )

    def __init__(
        self, snapshot: Snapshot, sample: Request, blocked: Blocked | None, has_waited: bool
    ) -> None:
        self._snapshot = snapshot
        self.sample = sample
        self.blocked = blocked
        self.has_waited = has_waited
        self.per_node = sample.gpus_per_node
        self.groups: list[Group] = []
        self.wanted: list[Choice] = []
        self.stuck: Choice | None = None
        self.secures: Choice | None = None
        self.nodes: Mapping[str, int] = {}
        self.kept = None if sample.promised is None else snapshot.promises.of(sample.id)
        self.rights = {
            pool: rights
            for pool in snapshot.pools(sample)
            if (rights := snapshot.rights(sample, pool)) is not None
        }
        if self.rights and blocked is None:
            self.wanted = [
                (snapshot.accounts.holding(sample, pool), gpus)
                for pool in self.rights
                for gpus in sample.sizes
            ]
            if self.kept is not None:
                promised = (self.kept.holding, self.kept.gpus)
                self.wanted = [promised, *(each for each in self.wanted if each != promised)]
        self.choices = list(self.wanted)

    @property
    def standing(self) -> Choice:
        """The choice by which it stands in line."""
        if self.choices:
            return self.secures or self.choices[0]
        return self.stuck or self.wanted[0]

    def asker(self, choice: Choice) -> Asker:
        """As it asks for one of its choices."""
        holding, gpus = choice
        rights = self.rights[holding.pool]
        class_ = holding.class_of(gpus, rights.urgent, *self._own(holding))
        return Asker(self.sample, holding, gpus, class_, rights)

    def in_the_end(self, choice: Choice) -> Asker:
        """As it asks for one of its choices once smaller runs that slipped in before it are over."""
        holding, gpus = choice
        asker = self.asker(choice)
        if asker.class_ is not Class.BORROWING or gpus > holding.quota:
            return asker
        less = self._snapshot.slipped_in(self.sample, holding, gpus)
        return asker._replace(class_=holding.covers(gpus, less, less)) if less else asker

    def allows(self, asker: Asker) -> bool:
        """Whether the rules let it start so, wherever the GPUs would come from."""
        holding = asker.holding
        return holding.allows(asker.gpus, asker.class_, asker.rights, *self._own(holding))

    def claimants(self, choice: Choice) -> Iterator[Asker]:
        """The first of each of its groups, if they have waited, and ask for the least they accept."""
        # What is promised to a request counts as use already.
        if self.has_waited and self.kept is None and choice[1] == self.sample.sizes[-1]:
            for group in self.groups:
                if (first := group.earliest) is not None:
                    yield self.asker(choice)._replace(request=first)

    def _own(self, holding: Holding) -> tuple[int, int]:
        """What a promise to itself adds to an account, and to its team: it does not count against it."""
        kept = self.kept
        if kept is None or kept.holding.team is not holding.team:
            return 0, 0
        of_account, of_team = kept.adds
        return (of_account if kept.holding is holding else 0), of_team


class Group:
    """Requests that are alike, earliest first.

    ``source`` is theirs if it makes a difference: it holds GPUs, or has started something since they
    were submitted. Else it is None, and requests of many sources are alike; ``apart`` finds the groups
    of those of its sources that have made a difference since. ``entry`` is what its first request
    stands by in a line of the account's ``holding``.
    """

    __slots__ = (
        "_aside",
        "_fixed_score",
        "_gone",
        "apart",
        "ask",
        "entry",
        "holding",
        "likeness",
        "requests",
        "source",
    )

    def __init__(self, ask: Ask, source: str | None, likeness: Likeness) -> None:
        self.ask = ask
        self.source = source
        self.likeness = likeness
        self.requests: list[Request] = []
        self.apart: dict[str | None, Group] = {}
        self.entry: Entry | None = None
        self.holding: Holding | None = None
        self._fixed_score = 0.0
        self._gone = 0
        self._aside: list[Request] = []

    def __bool__(self) -> bool:
        return self._gone < len(self.requests)

    @property
    def head(self) -> Request:
        return self.requests[self._gone]

    def pop(self) -> Request:
        """Take out the first."""
        head = self.head
        self._gone += 1
        self.entry = None
        return head

    def set_aside(self) -> None:
        """The first has had its turn, and waits beside the line."""
        self._aside.append(self.pop())

    def put_back(self) -> None:
        """Those set aside wait in the line again, before all that is left."""
        self.requests[self._gone : self._gone] = self._aside
        self._aside, self.entry = [], None

    @property
    def earliest(self) -> Request | None:
        """The first of all that waits, in the line or beside it."""
        if self._aside:
            return self._aside[0]
        return self.head if self else None

    def waiting(self) -> list[Request]:
        return self.requests[self._gone :] if self._gone else self.requests

    def keep(self, requests: list[Request]) -> None:
        """Only these of them wait on in this group."""
        self.requests, self._gone, self.entry = requests, 0, None

    def score(self, snapshot: Snapshot, holding: Holding) -> float:
        """The score of the first, without the points for its source."""
        head = self.head
        if self.holding is not holding:
            self.holding = holding
            self._fixed_score = snapshot.order.fixed_score(head, holding)
        ageing = snapshot.ageing(head)
        return self._fixed_score + ageing.wait(head.submitted) + ageing.deadline(head.submitted)


Entry = tuple[float, float, str, int, Group]
"""How a group stands in a line: by its score without the points for the source (negative), the
submission and the id of its first request. The number, which grows, says when it was made.
"""


class _Kind:
    """Requests that differ in nothing but their submission, in the order of it.

    ``group`` is the one that they belong to at present, until the submission that ``changes_at`` says.
    """

    __slots__ = ("changes", "changes_at", "group")

    def __init__(self, changes: list[float]) -> None:
        self.changes = changes
        self.changes_at = NEVER
        self.group: Group | None = None


class Groups:
    """All waiting requests by what they have in common."""

    def __init__(
        self, snapshot: Snapshot, requests: Iterable[Request], blocked: Mapping[str, Blocked]
    ) -> None:
        self._snapshot = snapshot
        self._groups: dict[tuple[str | None, Likeness], Group] = {}
        self._asks: dict[Hashable, Ask] = {}
        self._long_ago = snapshot.now - snapshot.policy.backfill.reserve_after.total_seconds()
        kinds: dict[tuple[Any, ...], _Kind] = {}
        for request in sorted(requests, key=_submission):
            if request.promised is not None or request.id in blocked:
                self._group(request, blocked.get(request.id)).requests.append(request)
                continue
            # Most requests differ from one before them in nothing but the submission.
            key = _all_but_submission(request)
            kind = kinds.get(key)
            if kind is None:
                kind = kinds[key] = _Kind(self._changes(request))
            submitted = request.submitted
            group = kind.group
            if group is None or submitted >= kind.changes_at:
                group = kind.group = self._group(request, None)
                at = bisect_right(kind.changes, submitted)
                kind.changes_at = kind.changes[at] if at < len(kind.changes) else inf
            group.requests.append(request)

    @property
    def asks(self) -> Iterable[Ask]:
        return self._asks.values()

    def alone(self, group: Group, kept: Kept) -> Ask:
        """What the first of a group asks now that one of its choices is kept for it, on its own."""
        ask, request = group.ask, group.pop()
        alone = Ask(self._snapshot, request, None, ask.has_waited)
        alone.kept, alone.choices = kept, list(ask.choices)
        likeness = (*group.likeness[:-1], request.id)
        self._asks[likeness] = alone
        self._new(alone, group.source, likeness).requests.append(request)
        return alone

    def of_its_source(self, group: Group, request: Request) -> Group:
        """Where a request of a group belongs once its source makes a difference."""
        source = request.source
        own = group.apart.get(source)
        if own is None:
            own = self._groups.get((source, group.likeness))
            if own is None:
                own = self._new(group.ask, source, group.likeness)
            group.apart[source] = own
        return own

    def part(self, ask: Ask, started: Container[str | None]) -> None:
        """Of the groups of many sources, take out what is of a source that makes a difference now."""
        for group in [group for group in ask.groups if group.source is None]:
            requests = group.waiting()
            others = [request for request in requests if request.source in started]
            if others:
                group.keep([request for request in requests if request.source not in started])
                for request in others:
                    self.of_its_source(group, request).requests.append(request)

    def _changes(self, request: Request) -> list[float]:
        """The submissions from which on requests like this one belong to another group."""
        _, since = self._snapshot.source_of(request)
        began = [nextafter(lease.started, inf) for lease in self._smaller_runs(request)]
        return sorted([nextafter(self._long_ago, inf), since, *began])

    def _smaller_runs(self, request: Request) -> list[Lease]:
        """The bounded runs of its accounts which may have slipped in before it."""
        if request.gpus <= ONE_GPU:
            return []
        snapshot, least = self._snapshot, request.sizes[-1]
        holdings = [snapshot.accounts.holding(request, pool) for pool in snapshot.pools(request)]
        return [
            lease
            for holding in holdings
            if least <= holding.quota
            for lease in snapshot.running.of_account(holding)
            if lease.max_duration is not None and lease.gpus < request.gpus
        ]

    def _began_before(self, request: Request) -> tuple[str, ...]:
        """Those of them that did."""
        return tuple(
            sorted(
                lease.id
                for lease in self._smaller_runs(request)
                if lease.started >= request.submitted
            )
        )

    def _group(self, request: Request, blocked: Blocked | None) -> Group:
        """The group that a request belongs to."""
        source = request.source
        if source is not None and not self._snapshot.matters(request):
            source = None
        promised = None if request.promised is None else request.id
        has_waited = request.submitted <= self._long_ago
        slipped = self._began_before(request)
        likeness = (_alike(request), blocked, has_waited, slipped, promised)
        group = self._groups.get((source, likeness))
        return self._new(self._ask(request, likeness), source, likeness) if group is None else group

    def _new(self, ask: Ask, source: str | None, likeness: Likeness) -> Group:
        group = self._groups[source, likeness] = Group(ask, source, likeness)
        ask.groups.append(group)
        return group

    def _ask(self, request: Request, likeness: Likeness) -> Ask:
        alike, blocked, has_waited, slipped, promised = likeness
        key = (alike[: len(_IN_ASK)], blocked, has_waited, slipped, promised)
        ask = self._asks.get(key)
        if ask is None:
            ask = self._asks[key] = Ask(self._snapshot, request, blocked, has_waited)
        return ask
