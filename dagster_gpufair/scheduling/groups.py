"""Requests that are alike, in groups, so that a pass looks at few of them.

An `Ask` is all that decides whether a request can start: those with the same ask can or cannot alike.
A `Group` is requests with the same ask that also gain points alike, so that only their submission
orders them and time never changes that order. Only its first request is ever looked at.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from operator import attrgetter
from typing import Any

from dagster_gpufair.scheduling.accounts import Holding, account_of
from dagster_gpufair.scheduling.model import Class, Request
from dagster_gpufair.scheduling.snapshot import Snapshot

_IN_ASK = ("team", "project", "pools", "tier", "kind", "gpus", "min_gpus", "gpus_per_node")
_BESIDES = ("max_duration", "preempted", "cpus", "memory_gib")

_alike = attrgetter(*_IN_ASK, *_BESIDES)
_submission = attrgetter("submitted", "id")

Blocked = tuple[str, str]
"""A reason and a sentence from outside the decision."""

Likeness = tuple[tuple[Any, ...], Blocked | None]
"""What the requests of a group have in common, but for their source."""


class Ask:
    """What some requests want alike, and the choices they still have: the first is where they stand.

    What is blocked from outside has none, nor has what names a team or tier that is no more.
    """

    __slots__ = ("_rights", "account", "blocked", "choices", "groups", "per_node", "sample")

    def __init__(self, snapshot: Snapshot, sample: Request, blocked: Blocked | None) -> None:
        self.sample = sample
        self.blocked = blocked
        self.account = account_of(sample)
        self.per_node = sample.gpus_per_node
        self.groups: list[Group] = []
        self.choices: list[tuple[Holding, int]] = []
        rights = snapshot.rights(sample)
        if rights is not None and blocked is None:
            self._rights = rights
            self.choices = [
                (snapshot.accounts.holding(self.account, pool), gpus)
                for pool in snapshot.pools(sample)
                for gpus in sample.sizes
            ]

    def allowed_class(self) -> Class | None:
        """The class of its first choice by the rules, wherever the GPUs would come from."""
        holding, gpus = self.choices[0]
        return holding.allowed_class(gpus, self._rights)


class Group:
    """Requests that are alike, earliest first.

    ``source`` is theirs if it makes a difference: it holds GPUs, or has started something since they
    were submitted. Else it is None, and requests of many sources are alike; ``apart`` finds the groups
    of those of its sources that have made a difference since. ``entry`` is what its first request
    stands by in a line of the account's ``holding``.
    """

    __slots__ = (
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


class Groups:
    """All waiting requests by what they have in common."""

    def __init__(
        self, snapshot: Snapshot, requests: Iterable[Request], blocked: Mapping[str, Blocked]
    ) -> None:
        self._snapshot = snapshot
        self._groups: dict[tuple[str | None, Likeness], Group] = {}
        self._asks: dict[Likeness, Ask] = {}
        for request in sorted(requests, key=_submission):
            source = request.source
            if source is not None and not snapshot.matters(request):
                source = None
            likeness = (_alike(request), blocked.get(request.id) if blocked else None)
            group = self._groups.get((source, likeness))
            if group is None:
                group = self._new(self._ask(request, likeness), source, likeness)
            group.requests.append(request)

    @property
    def asks(self) -> Iterable[Ask]:
        return self._asks.values()

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

    def _new(self, ask: Ask, source: str | None, likeness: Likeness) -> Group:
        group = self._groups[source, likeness] = Group(ask, source, likeness)
        ask.groups.append(group)
        return group

    def _ask(self, request: Request, likeness: Likeness) -> Ask:
        alike, blocked = likeness
        key = (alike[: len(_IN_ASK)], blocked)
        ask = self._asks.get(key)
        if ask is None:
            ask = self._asks[key] = Ask(self._snapshot, request, blocked)
        return ask
