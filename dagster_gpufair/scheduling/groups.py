"""Requests that are alike, in groups, so that a pass looks at few of them.

An `Ask` is all that decides whether a request can start: those with the same ask can or cannot alike.
A `Group` is requests with the same ask that also gain points alike, so that only their submission
orders them and time never changes that order. Only its first request is ever looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Any

from dagster_gpufair.scheduling.accounts import Holding, account_of, may_borrow
from dagster_gpufair.scheduling.model import Class, Request
from dagster_gpufair.scheduling.order import NEVER
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

    def __init__(self, snapshot: Snapshot, sample: Request, blocked: Blocked | None) -> None:
        self.sample = sample
        self.blocked = blocked
        self.account = account_of(sample)
        self.per_node = sample.gpus_per_node
        self.groups: list[Group] = []
        self.choices: list[tuple[Holding, int]] = []
        policy = snapshot.policy
        tier = policy.tiers.get(sample.tier)
        if blocked or tier is None or sample.team not in policy.teams:
            return
        self._urgent = tier.may_preempt
        self._may_borrow = may_borrow(policy.borrowing, sample.tier, sample.kind)
        self.choices = [
            (snapshot.accounts.holding(self.account, pool), gpus)
            for pool in dict.fromkeys(sample.pools)
            if pool in policy.pools
            for gpus in sample.sizes
        ]

    def allowed_class(self) -> Class | None:
        """The class of its first choice by the rules, wherever the GPUs would come from."""
        holding, gpus = self.choices[0]
        return holding.allowed_class(gpus, self._urgent, self._may_borrow)


class Group:
    """Requests that are alike, earliest first.

    ``source`` is theirs if it makes a difference: it holds GPUs, or has started something since they
    were submitted. Else it is None, and requests of many sources are alike.
    """

    def __init__(self, ask: Ask, source: str | None, likeness: Likeness) -> None:
        self.ask = ask
        self.source = source
        self.likeness = likeness
        self.requests: list[Request] = []
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
        return head

    def waiting(self) -> list[Request]:
        return self.requests[self._gone :] if self._gone else self.requests

    def keep(self, requests: list[Request]) -> None:
        """Only these of them wait on in this group."""
        self.requests, self._gone = requests, 0


class Groups:
    """All waiting requests by what they have in common."""

    def __init__(
        self, snapshot: Snapshot, requests: Iterable[Request], blocked: Mapping[str, Blocked]
    ) -> None:
        self._snapshot = snapshot
        self._groups: dict[tuple[str | None, Likeness], Group] = {}
        self._asks: dict[Likeness, Ask] = {}
        newest_start, holds_gpus = snapshot.newest_start, snapshot.holds_gpus
        for request in sorted(requests, key=_submission):
            source = request.source
            if source is not None:
                its = (request.team, source)
                if newest_start.get(its, NEVER) <= request.submitted and its not in holds_gpus:
                    source = None
            likeness = (_alike(request), blocked.get(request.id) if blocked else None)
            self._group(request, source, likeness).requests.append(request)

    @property
    def asks(self) -> Iterable[Ask]:
        return self._asks.values()

    def of_its_source(self, group: Group, request: Request) -> Group:
        """Where a request of a group belongs once its source makes a difference."""
        return self._group(request, request.source, group.likeness)

    def _group(self, request: Request, source: str | None, likeness: Likeness) -> Group:
        group = self._groups.get((source, likeness))
        if group is None:
            group = self._groups[source, likeness] = Group(self._ask(request, likeness), source, likeness)
            group.ask.groups.append(group)
        return group

    def _ask(self, request: Request, likeness: Likeness) -> Ask:
        alike, blocked = likeness
        key = (alike[: len(_IN_ASK)], blocked)
        ask = self._asks.get(key)
        if ask is None:
            ask = self._asks[key] = Ask(self._snapshot, request, blocked)
        return ask
