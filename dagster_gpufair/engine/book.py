"""What is open, in the daemon's memory: requests that wait, leases that are held, runs that are not ours.

It follows what holds GPUs, not callbacks: each pass brings the ids of all unfinished runs, oldest first,
and whatever is new or gone since is looked up once. So nothing is missed, and a pass costs no more than
the list of ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from sqlalchemy.orm import Session

from dagster_gpufair.ledger import approvals, leases, promises, requests, reservations
from dagster_gpufair.ledger.leases import LeaseRecord
from dagster_gpufair.ledger.requests import RequestRecord
from dagster_gpufair.ledger.state import blocked_of, state_from
from dagster_gpufair.policy.models import Policy
from dagster_gpufair.scheduling.model import Account, Promise, Request, State

Source = tuple[str, str]
"""A team, and what it launches runs by."""


class Book:
    """By request id: ``queued`` requests and ``leases``; ``others`` are unfinished runs without GPUs.

    ``changes`` counts what has changed of requests and leases. ``blocked`` and ``reserved`` are what the
    ledger was last made to say of them: what keeps a request from starting besides the decision, with
    reason and sentence, and what is kept for whom.
    """

    def __init__(self) -> None:
        self.changes = 0
        self.queued: dict[str, RequestRecord] = {}
        self.leases: dict[str, LeaseRecord] = {}
        self.others: set[str] = set()
        self.blocked: dict[str, tuple[str, str]] = {}
        self.reserved: Sequence[reservations.Row] = []
        self.source_starts: dict[Source, float] = {}
        self._requests: dict[str, Request] = {}
        self._in_order: list[Request] | None = None
        self._by_run: dict[str, str] = {}

    @classmethod
    def opened(cls, session: Session) -> Book:
        """Read all that is open from the ledger."""
        book = cls()
        book.source_starts = dict(leases.source_starts(session))
        for lease in leases.open_leases(session):
            book.hold(lease)
        promised = promises.current(session)
        waiting = requests.waiting(session)
        for record in waiting:
            book.enter(record, promised.get(record.id))
        book.reject(approvals.in_state(session, "rejected"))
        book.blocked = blocked_of(waiting)
        book.reserved = reservations.current(session)
        return book

    def state(
        self,
        policy: Policy,
        now: float,
        *,
        used: Mapping[tuple[Account, str], float],
        cordoned: Mapping[str, frozenset[str]],
        blocked: Mapping[str, tuple[str, str]],
    ) -> State:
        """The moment as the decision wants it."""
        return state_from(
            policy,
            now,
            waiting=self.in_order(),
            held=self.leases.values(),
            used=used,
            source_starts=self.source_starts,
            cordoned=cordoned,
            blocked=blocked,
        )

    # -- what waits -----------------------------------------------------------------------------

    def new_sources(self, entering: Iterable[RequestRecord]) -> set[Source]:
        """The sources of requests that are about to enter of which nothing is known yet."""
        return {source for each in entering if (source := source_of(each))} - {
            source for each in self.queued.values() if (source := source_of(each))
        }

    def enter(self, record: RequestRecord, promised: Promise | None = None) -> None:
        """A request waits."""
        self.changes += 1
        self.queued[record.id] = record
        self._requests[record.id] = record.to_request(promised)
        self._by_run[record.run_id] = record.id
        self._in_order = None

    def reenter(self, record: RequestRecord) -> None:
        """A request that waits is of another run now; what blocks it is judged anew by a pass."""
        self._by_run.pop(self.queued[record.id].run_id, None)
        self.enter(record)

    def leave(self, request_id: str) -> None:
        """A request waits no more."""
        self.changes += 1
        left = self.queued.pop(request_id, None)
        if left is not None and request_id not in self.leases:
            self._by_run.pop(left.run_id, None)
        self._requests.pop(request_id, None)
        self.blocked.pop(request_id, None)
        self._in_order = None

    def promise(self, request_id: str, promised: Promise | None) -> None:
        """GPUs are kept for a request that waits, or are no more."""
        if request_id in self._requests:
            self._requests[request_id] = replace(self._requests[request_id], promised=promised)
            self._in_order = None
            self.changes += 1

    def reject(self, request_ids: Iterable[str]) -> None:
        """A person has said that nobody is to be stopped for these."""
        for id_ in request_ids:
            request = self._requests.get(id_)
            if request is not None and not request.rejected:
                self._requests[id_] = replace(request, rejected=True)
                self._in_order = None
                self.changes += 1

    def in_order(self) -> list[Request]:
        """What waits, earliest submission first: as the decision takes it fastest."""
        if self._in_order is None:
            self._in_order = sorted(self._requests.values(), key=lambda r: (r.submitted, r.id))
        return self._in_order

    # -- what holds GPUs ------------------------------------------------------------------------

    def granted(self, lease: LeaseRecord) -> None:
        """A request has got its GPUs."""
        self.leave(lease.request_id)
        self.hold(lease)
        if lease.source is not None:
            key = (lease.team, lease.source)
            self.source_starts[key] = max(lease.started_at, self.source_starts.get(key, 0.0))

    def hold(self, lease: LeaseRecord) -> None:
        """A lease is held, or has changed."""
        self.changes += 1
        self.leases[lease.request_id] = lease
        self._by_run[lease.run_id] = lease.request_id

    def released(self, request_id: str) -> None:
        """A request holds no GPUs any more."""
        self.changes += 1
        lease = self.leases.pop(request_id, None)
        if lease is not None:
            self._by_run.pop(lease.run_id, None)

    def forget_sources(self) -> None:
        """Of sources from which nothing waits, nobody needs to know when they last started something."""
        wanted = {source for each in self.queued.values() if (source := source_of(each))}
        self.source_starts = {
            source: at for source, at in self.source_starts.items() if source in wanted
        }

    # -- runs -----------------------------------------------------------------------------------

    def lease_of_run(self, run_id: str) -> LeaseRecord | None:
        """What a run holds."""
        return self.leases.get(self._by_run.get(run_id, ""))

    def request_of_run(self, run_id: str) -> RequestRecord | None:
        """What a run waits for."""
        return self.queued.get(self._by_run.get(run_id, ""))

    def unknown(self, unfinished: Iterable[str]) -> list[str]:
        """The unfinished runs that the book has not heard of."""
        return [
            run_id
            for run_id in unfinished
            if run_id not in self.others and run_id not in self._by_run
        ]

    def cancelled(self, unfinished: set[str]) -> list[RequestRecord]:
        """The requests whose runs are no longer among the unfinished: cancelled or deleted."""
        self.others &= unfinished
        return [
            record
            for record in self.queued.values()
            if record.run_id not in unfinished and record.continues is None
        ]

    def to_go_on(self) -> dict[str, RequestRecord]:
        """By id, the requests that were stopped for others, and whose next run is not queued yet."""
        return {id_: each for id_, each in self.queued.items() if each.continues is not None}

    def run_of(self, request_id: str) -> str:
        """The run that a request is for now."""
        record = self.queued.get(request_id) or self.leases.get(request_id)
        return request_id if record is None else record.run_id


def source_of(record: RequestRecord) -> Source | None:
    """What a request was launched by."""
    return None if record.source is None else (record.team, record.source)
