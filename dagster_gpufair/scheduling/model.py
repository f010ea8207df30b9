"""What a decision is made from and what it says, as plain values.

GPU amounts are ``int`` thousandths of a GPU; times are seconds since the epoch; durations are
seconds. Nothing here knows Dagster, a database or a clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import NamedTuple

HOUR = 3600.0


class Class(IntEnum):
    """How sure a request is of its GPUs; better classes are decided first.

    *Urgent* is what a tier that may preempt asks for, *guaranteed* what the quota covers, and
    *borrowing* everything above it.
    """

    URGENT = 0
    GUARANTEED = 1
    BORROWING = 2

    @property
    def label(self) -> str:
        return self.name.lower()


class Account(NamedTuple):
    """Who a quota belongs to: a team, or a project with a quota inside one."""

    team: str
    project: str | None = None

    def __str__(self) -> str:
        return self.team if self.project is None else f"{self.team}/{self.project}"


@dataclass(frozen=True, slots=True)
class Request:
    """What one run asks for. ``pools`` is in order of liking.

    ``submitted`` is when it came to the queue: for a preempted request, when it came back.
    ``source`` is what it was launched by inside its team (a backfill, a user, a job); without one
    it is a source of its own.
    """

    id: str
    team: str
    tier: str
    pools: tuple[str, ...]
    gpus: int
    submitted: float
    project: str | None = None
    kind: str | None = None
    min_gpus: int | None = None
    gpus_per_node: int | None = None
    max_duration: float | None = None
    source: str | None = None
    preempted: int = 0
    cpus: float = 0.0
    memory_gib: float = 0.0

    @property
    def sizes(self) -> tuple[int, ...]:
        """The amounts it would start with, in order of liking."""
        if self.min_gpus is None or self.min_gpus >= self.gpus:
            return (self.gpus,)
        return (self.gpus, self.min_gpus)


@dataclass(frozen=True, slots=True)
class Lease:
    """GPUs granted to a request, on the nodes named (none in a pool without nodes)."""

    id: str
    team: str
    tier: str
    pool: str
    gpus: int
    started: float
    nodes: Mapping[str, int] = field(default_factory=dict)
    project: str | None = None
    max_duration: float | None = None
    source: str | None = None
    preempted: int = 0

    @property
    def ends(self) -> float | None:
        """When it is over at the latest, if that is bounded."""
        return None if self.max_duration is None else self.started + self.max_duration


@dataclass(frozen=True, slots=True)
class State:
    """The moment a plan is made for: who waits, who holds what, and what is remembered.

    ``used`` holds decayed borrowed GPU-hours by (account, pool); ``source_starts`` the newest start
    of each (team, source), running or not; ``cordoned`` the nodes of a pool that take nothing new.
    ``blocked`` holds requests that something outside this decision keeps from starting now (Dagster's
    own limits, a broken environment), with the reason and a sentence.
    """

    requests: Sequence[Request] = ()
    leases: Sequence[Lease] = ()
    used: Mapping[tuple[Account, str], float] = field(default_factory=dict)
    source_starts: Mapping[tuple[str, str], float] = field(default_factory=dict)
    cordoned: Mapping[str, frozenset[str]] = field(default_factory=dict)
    blocked: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    def after(self, starts: Iterable[Start], now: float) -> State:
        """The state once these have started: they hold leases and wait no more."""
        leases = [start.lease(now) for start in starts]
        started = {lease.id for lease in leases}
        source_starts = dict(self.source_starts)
        for lease in leases:
            if lease.source is not None:
                source_starts[lease.team, lease.source] = now
        return replace(
            self,
            requests=[request for request in self.requests if request.id not in started],
            leases=[*self.leases, *leases],
            source_starts=source_starts,
        )


class Points(NamedTuple):
    """A score as the named points it is the sum of."""

    tier: float
    wait: float
    share: float
    preempted: float
    deadline: float
    source: float

    @property
    def score(self) -> float:
        """The sum, always added in the same order, so that equal points make equal scores."""
        fixed = self.tier + self.share + self.preempted
        return fixed + self.wait + self.deadline + self.source


class Ageing(NamedTuple):
    """How time raises a request: the only points that differ among requests that are alike.

    ``since`` is the newest start of their source. Waiting counts from there or from the submission,
    whichever is later, so that each start of a backfill sends the rest of it back in the line.
    Nearing the committed start counts from the submission alone: from half of ``start_within`` the
    points rise linearly to all of them, and stay.
    """

    now: float
    since: float
    wait_points_per_hour: float
    deadline_points: float
    start_within: float | None

    def wait(self, submitted: float) -> float:
        waited = self.now - (submitted if submitted > self.since else self.since)
        return self.wait_points_per_hour * waited / HOUR if waited > 0 else 0.0

    def deadline(self, submitted: float) -> float:
        if self.start_within is None:
            return 0.0
        half = self.start_within / 2
        late = self.now - submitted - half
        if late <= 0:
            return 0.0
        return self.deadline_points if late >= half else self.deadline_points * late / half


@dataclass(frozen=True, slots=True)
class Start:
    """One request that starts now, where, and what it was judged by."""

    request: Request
    pool: str
    gpus: int
    nodes: Mapping[str, int]
    class_: Class
    saturation: float
    points: Points

    def lease(self, now: float) -> Lease:
        """What it holds from now on."""
        request = self.request
        return Lease(
            id=request.id,
            team=request.team,
            tier=request.tier,
            pool=self.pool,
            gpus=self.gpus,
            started=now,
            nodes=self.nodes,
            project=request.project,
            max_duration=request.max_duration,
            source=request.source,
            preempted=request.preempted,
        )


class Waiting(NamedTuple):
    """Requests that are alike and wait for the same reason, earliest first.

    ``pool`` is where they stand in line: the first of their list in which only space is missing,
    else the first that is in the policy. ``class_``, ``saturation`` and ``points`` are of the first
    request, there, for the least it accepts; `points_of` gives the points of the others.
    """

    requests: Sequence[Request]
    reason: str
    message: str
    pool: str
    class_: Class
    saturation: float
    points: Points
    ageing: Ageing | None = None

    def points_of(self, request: Request) -> Points:
        """The points of one of ``requests``."""
        if self.ageing is None:
            return self.points
        tier, _, share, preempted, _, source = self.points
        wait, deadline = (
            self.ageing.wait(request.submitted),
            self.ageing.deadline(request.submitted),
        )
        return Points(tier, wait, share, preempted, deadline, source)


@dataclass(frozen=True, slots=True)
class Plan:
    """What starts now, in order, and why the rest waits, in the order it was decided.

    Groups in ``waiting`` are in the order of their first requests; `places` says where each request
    stands.
    """

    starts: Sequence[Start]
    waiting: Sequence[Waiting]

    def reasons(self) -> dict[str, str]:
        """The one reason of every waiting request, by its id."""
        return {request.id: group.reason for group in self.waiting for request in group.requests}
