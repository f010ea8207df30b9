"""What a decision is made from and what it says, as plain values.

GPU amounts are ``int`` thousandths of a GPU; times are seconds since the epoch; durations are
seconds. Nothing here knows Dagster, a database or a clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Literal, NamedTuple

HOUR = 3600.0


Reason = Literal[
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
]
"""Why a request waits: one of these (design §5, *Reasons*)."""

Blocked = tuple[Reason, str]
"""A reason and a sentence from outside the decision."""


class Class(IntEnum):
    """By what right a request asks for its GPUs; better classes are decided first.

    *Urgent* is what a tier that may preempt asks for, *guaranteed* what is within the quota of its account,
    and *borrowing* everything above it. *Shared* is in between: over the quota of its own account, and
    within that of its team as a whole. So it is guaranteed towards other teams, and borrowed towards the
    other accounts of its team.
    """

    URGENT = 0
    GUARANTEED = 1
    SHARED = 2
    BORROWING = 3

    @property
    def label(self) -> str:
        """As people read it: what is within the team's quota is guaranteed too."""
        return "guaranteed" if self is Class.SHARED else self.name.lower()

    @property
    def words(self) -> str:
        """As it is told apart from the others."""
        return "guaranteed by its team" if self is Class.SHARED else self.name.lower()


class Account(NamedTuple):
    """Who a quota belongs to: a team, or inside a team a project with a quota.

    In a team with such projects, the team's name alone stands for the rest of it.
    """

    team: str
    project: str | None = None

    def __str__(self) -> str:
        return self.team if self.project is None else f"{self.team}/{self.project}"


Cards = Mapping[str, Sequence[tuple[int, int]]]
"""By node, the cards of a lease by number, from 0, and how much of each it has."""

UNNAMED = ""
"""The one node that a pool without nodes counts as: only its cards have a shape."""


@dataclass(frozen=True, slots=True)
class Promise:
    """GPUs reserved for a request while its victims are stopped: all of them, also those free already.

    ``nodes`` says where they are, and is empty in a pool without nodes.
    """

    pool: str
    gpus: int
    nodes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Request:
    """What one run asks for. ``pools`` is in order of liking.

    ``submitted`` is when it came to the queue: for a preempted request, when it came back.
    ``priority`` is what it says of itself among its own kind, in Dagster's words.
    ``source`` is what it was launched by inside its team (a backfill, a user, a job); without one
    it is a source of its own. ``promised`` is what is kept for it since victims were given notice.
    ``rejected``: a person has said that nobody is to be stopped for it.
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
    priority: int = 0
    promised: Promise | None = None
    rejected: bool = False

    @property
    def sizes(self) -> tuple[int, ...]:
        """The amounts it would start with, in order of liking."""
        if self.min_gpus is None or self.min_gpus >= self.gpus:
            return (self.gpus,)
        return (self.gpus, self.min_gpus)

    def lease(
        self,
        pool: str,
        gpus: int,
        started: float,
        nodes: Mapping[str, int] | None = None,
        cards: Cards | None = None,
    ) -> Lease:
        """What it holds if it starts then, with so many GPUs of a pool, on these nodes and cards."""
        return Lease(
            id=self.id,
            team=self.team,
            tier=self.tier,
            pool=pool,
            gpus=gpus,
            started=started,
            nodes=nodes or {},
            cards=cards or {},
            project=self.project,
            max_duration=self.max_duration,
            source=self.source,
            preempted=self.preempted,
            cpus=self.cpus,
            memory_gib=self.memory_gib,
        )


@dataclass(frozen=True, slots=True)
class Lease:
    """GPUs granted to a request, on the nodes named (none in a pool without nodes).

    ``cards`` says which cards of them; where it does not, they are packed by the rule for what starts.
    ``began`` is when the work on them began, where that is later than ``started``: a container may take
    its time. ``checkpointed`` is when its work was last saved, ``notice_until`` when it has to be gone if it
    was given notice and ``notice_for`` the request that this was for, ``term_from`` when its borrowing time
    began anew, if it did since the start. ``kept_until`` is until when its owner keeps it from being stopped
    for others; nothing is stopped that is ``starting``. ``overdue``: it should long be gone, and nobody knows
    when it is.
    """

    id: str
    team: str
    tier: str
    pool: str
    gpus: int
    started: float
    nodes: Mapping[str, int] = field(default_factory=dict)
    cards: Cards = field(default_factory=dict)
    project: str | None = None
    max_duration: float | None = None
    source: str | None = None
    preempted: int = 0
    cpus: float = 0.0
    memory_gib: float = 0.0
    checkpointed: float | None = None
    notice_until: float | None = None
    notice_for: str | None = None
    term_from: float | None = None
    began: float | None = None
    kept_until: float | None = None
    starting: bool = False
    overdue: bool = False

    @property
    def works_from(self) -> float:
        """When its work began: from there its bound and its least time are counted."""
        return self.started if self.began is None else max(self.started, self.began)

    @property
    def ends(self) -> float | None:
        """When it is over at the latest, if that is known: by its duration, or by a notice."""
        if self.overdue:
            return None
        if self.max_duration is None:
            return self.notice_until
        end = self.works_from + self.max_duration
        return end if self.notice_until is None else min(end, self.notice_until)

    @property
    def since_saved(self) -> float:
        """Since when its work would be lost if it were stopped."""
        return (
            self.works_from
            if self.checkpointed is None
            else max(self.works_from, self.checkpointed)
        )


@dataclass(frozen=True, slots=True)
class State:
    """The moment a plan is made for: who waits, who holds what, and what is remembered.

    ``used`` holds decayed borrowed GPU-hours by (account, pool); ``source_starts`` the newest start
    of each (team, source), running or not; ``cordoned`` the nodes of a pool that accept no new runs.
    ``blocked`` holds requests that something outside this decision keeps from starting now (Dagster's
    own limits, a broken environment), with the reason and a sentence.
    """

    requests: Sequence[Request] = ()
    leases: Sequence[Lease] = ()
    used: Mapping[tuple[Account, str], float] = field(default_factory=dict)
    source_starts: Mapping[tuple[str, str], float] = field(default_factory=dict)
    cordoned: Mapping[str, frozenset[str]] = field(default_factory=dict)
    blocked: Mapping[str, Blocked] = field(default_factory=dict)

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

    def following(self, plan: Plan, now: float, grace: Callable[[str], float]) -> State:
        """The state once all of a plan is carried out, but for what awaits a person's approval.

        What was promised is kept, victims are under notice for ``grace`` of their pool, in seconds, and those
        spared stay.
        """
        after = self.after(plan.starts, now)
        acted_on = [each for each in plan.preemptions if not each.awaits_approval]
        promises = {each.request.id: each.promise for each in acted_on}
        notices = {victim.lease.id: each.request.id for each in acted_on for victim in each.victims}
        withdrawn, spared, renewed = set(plan.withdrawn), set(plan.spared), set(plan.renewed)

        def request_after(request: Request) -> Request:
            if request.id in promises:
                return replace(request, promised=promises[request.id])
            return replace(request, promised=None) if request.id in withdrawn else request

        def lease_after(lease: Lease) -> Lease:
            if lease.id in notices:
                return replace(
                    lease, notice_until=now + grace(lease.pool), notice_for=notices[lease.id]
                )
            if lease.id in spared:
                lease = replace(lease, notice_until=None, notice_for=None)
            return replace(lease, term_from=now) if lease.id in renewed else lease

        return replace(
            after,
            requests=[request_after(request) for request in after.requests],
            leases=[lease_after(lease) for lease in after.leases],
        )


class Points(NamedTuple):
    """A score as the named points it is the sum of."""

    tier: float
    wait: float
    share: float
    preempted: float
    deadline: float
    priority: float
    source: float

    @property
    def score(self) -> float:
        """The sum, always added in the same order, so that equal points make equal scores."""
        fixed = self.tier + self.share + self.preempted + self.priority
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
    inside: float = 0.0
    cards: Cards = field(default_factory=dict)

    def lease(self, now: float) -> Lease:
        """What it holds from now on."""
        return self.request.lease(self.pool, self.gpus, now, self.nodes, self.cards)


class Victim(NamedTuple):
    """A lease that is to end for another, and the rule that allows it.

    The rules are ``reclaim``, ``priority``, ``urgent``, ``rebalance``, and ``term`` for a borrowed lease
    whose borrowing time is over.
    """

    lease: Lease
    rule: str


@dataclass(frozen=True, slots=True)
class Preemption:
    """Leases that are given notice for one request, and what is kept for it meanwhile.

    ``awaits_approval``: nobody is given notice before a person has agreed. It is decided anew in each pass
    until then, and in each nothing worse starts on what it needs.
    """

    request: Request
    promise: Promise
    victims: Sequence[Victim]
    awaits_approval: bool = False

    @property
    def kind(self) -> str:
        """The rule that its first victim falls under."""
        return self.victims[0].rule


@dataclass(frozen=True, slots=True)
class Reservation:
    """GPUs that nothing worse may delay: for ``request``, from ``at`` on.

    ``at`` is None if no bounds say when; then the free GPUs of ``nodes`` are kept from now on. With
    ``of_quota`` it is no GPUs that are kept but the account's quota, from its other work.
    """

    request: Request
    pool: str
    gpus: int
    nodes: Mapping[str, int]
    at: float | None
    class_: Class
    of_quota: bool = False


class Sentence:
    """Words that are put together only when somebody reads them: few of all that wait are read about."""

    __slots__ = ("_said", "_say")

    def __init__(self, say: Callable[[], str]) -> None:
        self._say = say
        self._said: str | None = None

    def __str__(self) -> str:
        if self._said is None:
            self._said = self._say()
        return self._said

    def __repr__(self) -> str:
        return repr(str(self))

    def __eq__(self, other: object) -> bool:
        return str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))


class Waiting(NamedTuple):
    """Requests that are alike and wait for the same reason, earliest first.

    ``pool`` is where they stand in line: the first of their list in which only space is missing,
    else the first that is in the policy. ``class_``, ``saturation`` and ``points`` are of the first
    request, there, for the least it accepts; `points_of` gives the points of the others. ``blockers``
    names what keeps it waiting: requests, leases or accounts, depending on the reason.
    """

    requests: Sequence[Request]
    reason: Reason
    said: Sentence | str
    pool: str
    class_: Class
    saturation: float
    points: Points
    ageing: Ageing | None = None
    blockers: tuple[str, ...] = ()
    inside: float = 0.0

    @property
    def message(self) -> str:
        """Why they wait, in a sentence."""
        return str(self.said)

    def points_of(self, request: Request) -> Points:
        """The points of one of ``requests``."""
        if self.ageing is None:
            return self.points
        tier, _, share, preempted, _, priority, source = self.points
        wait, deadline = (
            self.ageing.wait(request.submitted),
            self.ageing.deadline(request.submitted),
        )
        return Points(tier, wait, share, preempted, deadline, priority, source)


@dataclass(frozen=True, slots=True)
class Plan:
    """What starts now, in order, who is stopped for whom, and why the rest waits.

    Groups in ``waiting`` are in the order of their first requests; `places` says where each request
    stands. ``withdrawn`` are requests whose promise ends, and ``spared`` the leases whose notice ends with
    it: those that were given notice for it, and that no other promise needs by now. ``renewed`` are
    borrowed leases whose borrowing time is over and begins anew, since nobody waits that could use them.
    """

    starts: Sequence[Start]
    waiting: Sequence[Waiting]
    preemptions: Sequence[Preemption] = ()
    reservations: Sequence[Reservation] = ()
    withdrawn: Sequence[str] = ()
    spared: Sequence[str] = ()
    renewed: Sequence[str] = ()

    def reasons(self) -> dict[str, Reason]:
        """The one reason of every waiting request, by its id."""
        return {request.id: group.reason for group in self.waiting for request in group.requests}
