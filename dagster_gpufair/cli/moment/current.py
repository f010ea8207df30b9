"""The moment that the ledger is in, decided by the same `plan` as in the daemon.

A command reads it in one transaction, so that all it says is true of the same moment.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import click
from sqlalchemy.orm import Session

from dagster_gpufair.cli.instance.opening import OpenLedger, no_policy
from dagster_gpufair.cli.moment.expected_start import UNKNOWN, Expected, expected_starts
from dagster_gpufair.cli.output.text import LONGEST_SENTENCE, plain
from dagster_gpufair.ledger import (
    approvals,
    durations,
    leases,
    nodes,
    pauses,
    policies,
    requests,
    status,
)
from dagster_gpufair.ledger.approvals import Approval
from dagster_gpufair.ledger.leases import LeaseRecord
from dagster_gpufair.ledger.nodes import CordonedNode
from dagster_gpufair.ledger.policies import PolicyVersion
from dagster_gpufair.ledger.state import state_of
from dagster_gpufair.ledger.status import DAEMON, POLICY_FILE, UNCOUNTED
from dagster_gpufair.ledger.writer import TURN_LASTS
from dagster_gpufair.policy.loading import parse_policy
from dagster_gpufair.policy.models import Pausable, Policy
from dagster_gpufair.scheduling.explaining.places import places
from dagster_gpufair.scheduling.model import (
    Account,
    Class,
    Plan,
    Points,
    Request,
    Reservation,
    Sentence,
    State,
)
from dagster_gpufair.scheduling.plan import plan
from dagster_gpufair.scheduling.snapshot import Snapshot

SHORT = 8
"""Characters of a run's id that Dagster's UI shows."""


@dataclass(frozen=True)
class Daemon:
    """The last word of the queue daemon, and whether it should have said more by now.

    ``trouble`` is what is wrong with ``dagster.yaml``, of a daemon that is overdue.
    """

    last_pass: float | None
    host: str | None
    overdue: bool
    trouble: str | None = None


@dataclass(frozen=True)
class Waiter:
    """A request in the line of a pool. One that starts on the next pass has no place and no reason.

    ``blockers`` names what keeps it waiting: requests, leases or accounts, depending on the reason.
    """

    request: Request
    pool: str
    place: int | None
    class_: Class
    saturation: float
    points: Points
    reason: str | None
    said: Sentence | str
    blockers: Sequence[str] = ()

    @property
    def message(self) -> str:
        """Why it waits, in a sentence."""
        return str(self.said)


@dataclass(frozen=True)
class Moment:
    """Who waits, who holds what and by which policy, and what is decided about it ``now``.

    ``policy`` is as the daemon follows it, without what is ``paused`` (by whom, why, since when).
    ``runs`` has the run of each request that goes on in another than its first.
    ``usual_ends`` says when leases end if they take as long as such runs usually have, and
    ``usual_lengths`` how long what waits will take then.
    """

    now: float
    version: PolicyVersion
    policy: Policy
    file_trouble: Mapping[str, Any] | None
    daemon: Daemon
    state: State
    leases: Sequence[LeaseRecord]
    cordons: Sequence[CordonedNode]
    usual_ends: Mapping[str, float]
    usual_lengths: Mapping[str, float] = field(default_factory=dict)
    uncounted: Mapping[str, str] = field(default_factory=dict)
    """Runs that use GPUs which count nowhere, and why."""
    paused: Mapping[Pausable, Mapping[str, Any]] = field(default_factory=dict)
    runs: Mapping[str, str] = field(default_factory=dict)
    proposals: Mapping[str, Approval] = field(default_factory=dict)
    """What awaits a person, by the request that it is for."""

    @cached_property
    def plan(self) -> Plan:
        """What starts now and why the rest waits, as the daemon decides it."""
        return plan(self.policy, self.state, self.now)

    @cached_property
    def settled(self) -> State:
        """The state once that has started: what `plan` judges the rest by."""
        return self.state.after(self.plan.starts, self.now)

    @cached_property
    def snapshot(self) -> Snapshot:
        """Rooms and holdings as they are, before anything starts."""
        return Snapshot(self.policy, self.state, self.now)

    @cached_property
    def settled_snapshot(self) -> Snapshot:
        """Rooms and holdings once that has started."""
        return Snapshot(self.policy, self.settled, self.now)

    @cached_property
    def still_waiting(self) -> Mapping[str, Request]:
        """What waits once that has started, by id."""
        return {request.id: request for request in self.settled.requests}

    @cached_property
    def names(self) -> Mapping[str, str]:
        """All that waits or holds GPUs, by the ids that people read."""
        ids = [
            *(request.id for request in self.state.requests),
            *(lease.id for lease in self.state.leases),
        ]
        names = short_ids(self.run_of(id_) for id_ in ids)
        return {id_: names[self.run_of(id_)] for id_ in ids}

    def run_of(self, request_id: str) -> str:
        """The run that a request is for now."""
        return self.runs.get(request_id, request_id)

    def is_covered(self, lease: LeaseRecord) -> bool:
        """Whether a lease is within the quota of its team as a whole."""
        return (
            lease.request_id
            not in self.snapshot.running.borrowed(lease.team, lease.pool).from_others
        )

    def borrowed_in(self, pool: str) -> int:
        """GPUs that teams use over their quotas in a pool, in thousandths."""
        teams = {lease.team for lease in self.state.leases if lease.pool == pool}
        accounts = self.snapshot.accounts
        return sum(accounts.account(Account(team), pool).team.overage for team in teams)

    @cached_property
    def starts_at(self) -> Mapping[str, Expected]:
        """When requests start, by id, where that is known."""
        usual = (self.usual_ends, self.usual_lengths)
        return expected_starts(self.policy, self.state, self.now, *usual)

    def expected(self, request_id: str) -> Expected:
        """When a request starts, as far as that is known."""
        return self.starts_at.get(request_id, UNKNOWN)

    def reservations_in(self, pool: str) -> Sequence[Reservation]:
        """The reservations in a pool."""
        return [each for each in self.plan.reservations if each.pool == pool]

    @cached_property
    def lines(self) -> Mapping[str, Sequence[Waiter]]:
        """By pool, all that wait there: first those that start on the next pass, then by place."""
        lines: dict[str, list[Waiter]] = {}
        for start in self.plan.starts:
            lines.setdefault(start.pool, []).append(
                Waiter(
                    request=start.request,
                    pool=start.pool,
                    place=None,
                    class_=start.class_,
                    saturation=start.saturation,
                    points=start.points,
                    reason=None,
                    said="starts on the daemon's next pass",
                )
            )
        for pool, waiting in self._waiting().items():
            lines.setdefault(pool, []).extend(waiting)
        return lines

    def waiter(self, request_id: str) -> Waiter | None:
        """A request where it waits; None if it does not."""
        everyone = (waiter for line in self.lines.values() for waiter in line)
        return next((waiter for waiter in everyone if waiter.request.id == request_id), None)

    def _waiting(self) -> Mapping[str, Sequence[Waiter]]:
        place_of = places(self.plan)
        lines: dict[str, list[Waiter]] = {}
        for group in self.plan.waiting:
            lines.setdefault(group.pool, []).extend(
                Waiter(
                    request=request,
                    pool=group.pool,
                    place=place_of[request.id][1],
                    class_=group.class_,
                    saturation=group.saturation,
                    points=group.points_of(request),
                    reason=group.reason,
                    said=group.said,
                    blockers=[id_ for id_ in group.blockers if id_ != request.id],
                )
                for request in group.requests
            )
        for line in lines.values():
            line.sort(key=lambda waiter: waiter.place or 0)
        return lines


def read_moment(opened: OpenLedger, session: Session, now: float) -> Moment:
    """The moment as the ledger has it, and what is wrong with the instance if its daemon is gone.

    Raises:
        click.ClickException: if no policy is in force.
        PolicyError: if this version of the package cannot read the one that is.
    """
    version = policies.in_force(session)
    if version is None:
        raise no_policy(opened.instance)
    paused = pauses.current(session)
    written = parse_policy(version.document, f"policy v{version.version}")
    policy = written.while_paused(paused)
    return Moment(
        now=now,
        version=version,
        policy=policy,
        paused=paused,
        runs=requests.runs_that_go_on(session),
        proposals=approvals.in_state(session, "proposed"),
        file_trouble=status.get(session, POLICY_FILE),
        daemon=_daemon(opened, session, now),
        state=state_of(session, policy, now),
        leases=leases.open_leases(session),
        cordons=nodes.cordoned(session),
        usual_ends=durations.usual_ends(session, now),
        usual_lengths=durations.usual_lengths(session, now),
        uncounted=status.get(session, UNCOUNTED) or {},
    )


def short_ids(ids: Iterable[str]) -> Mapping[str, str]:
    """Each run id as Dagster's UI shortens it, or whole where that would not tell it from another."""
    ids = set(ids)
    begin_so = Counter(id_[:SHORT] for id_ in ids)
    return {
        id_: plain(id_[:SHORT] if begin_so[id_[:SHORT]] == 1 else id_, LONGEST_SENTENCE)
        for id_ in ids
    }


def _daemon(opened: OpenLedger, session: Session, now: float) -> Daemon:
    said = status.get(session, DAEMON)
    if not said:
        return Daemon(None, None, overdue=True, trouble=_trouble(opened))
    host = str(said.get("host", "")).partition(" ")[0] or None
    overdue = now - said["at"] > TURN_LASTS
    return Daemon(said["at"], host, overdue, _trouble(opened) if overdue else None)


def _trouble(opened: OpenLedger) -> str | None:
    """Why the daemon cannot run, if that is because of ``dagster.yaml``."""
    try:
        ours = opened.policy_file is not None
    except click.ClickException as error:
        return error.message
    if ours:
        return None
    return "The run coordinator in dagster.yaml is not GpuFairRunCoordinator, so no GPU run starts."
