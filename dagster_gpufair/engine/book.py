"""What is open, in the daemon's memory: requests that wait, leases that are held, runs that are not ours.

It follows Dagster, not callbacks: each pass brings the ids of all unfinished runs, oldest first, and
whatever is new or gone since is looked up once. So nothing is missed, and a pass costs no more than the
list of ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from sqlalchemy.orm import Session

from dagster_gpufair.ledger import leases, requests, reservations
from dagster_gpufair.ledger.leases import LeaseRecord
from dagster_gpufair.ledger.requests import RequestRecord
from dagster_gpufair.scheduling.model import Request


class Book:
    """By run id: ``queued`` requests, ``leases``, and ``others``, unfinished runs that ask for no GPU.

    ``changes`` counts what has changed of requests and leases. ``blocked`` and ``reserved`` are what the
    ledger was last made to say of them: what keeps a request from starting besides the decision, with
    reason and sentence, and what is kept for whom.
    """

    def __init__(self, source_starts: Mapping[tuple[str, str], float] | None = None) -> None:
        self.changes = 0
        self.queued: dict[str, RequestRecord] = {}
        self.leases: dict[str, LeaseRecord] = {}
        self.others: set[str] = set()
        self.blocked: dict[str, tuple[str, str]] = {}
        self.reserved: Sequence[reservations.Row] = []
        self.source_starts = dict(source_starts or {})
        self._requests: dict[str, Request] = {}
        self._in_order: list[Request] | None = None

    @classmethod
    def opened(cls, session: Session) -> Book:
        """Read all that is open from the ledger."""
        book = cls(leases.source_starts(session))
        book.leases = {lease.request_id: lease for lease in leases.open_leases(session)}
        for record in requests.waiting(session):
            book.enter(record)
            if record.blocked_reason is not None:
                book.blocked[record.id] = (record.blocked_reason, record.blocked_message or "")
        book.reserved = reservations.current(session)
        return book

    def enter(self, record: RequestRecord) -> None:
        """A request waits."""
        self.changes += 1
        self.queued[record.id] = record
        self._requests[record.id] = record.to_request()
        self._in_order = None

    def leave(self, request_id: str) -> None:
        """A request waits no more."""
        self.changes += 1
        self.queued.pop(request_id, None)
        self._requests.pop(request_id, None)
        self._in_order = None

    def granted(self, lease: LeaseRecord) -> None:
        """A request has got its GPUs."""
        self.leave(lease.request_id)
        self.leases[lease.request_id] = lease
        if lease.source is not None:
            key = (lease.team, lease.source)
            self.source_starts[key] = max(lease.started_at, self.source_starts.get(key, 0.0))

    def released(self, request_id: str) -> None:
        """A request holds no GPUs any more."""
        self.changes += 1
        self.leases.pop(request_id, None)

    def in_order(self) -> list[Request]:
        """What waits, earliest submission first: as the decision takes it fastest."""
        if self._in_order is None:
            self._in_order = sorted(self._requests.values(), key=lambda r: (r.submitted, r.id))
        return self._in_order

    def unknown(self, unfinished: Iterable[str]) -> list[str]:
        """The unfinished runs that the book has not heard of."""
        return [
            run_id
            for run_id in unfinished
            if run_id not in self.others and run_id not in self.queued and run_id not in self.leases
        ]

    def gone(self, unfinished: set[str]) -> tuple[list[str], list[str]]:
        """(requests, leases) whose runs are no longer among the unfinished: cancelled, ended, deleted."""
        self.others &= unfinished
        return (
            [run_id for run_id in self.queued if run_id not in unfinished],
            [run_id for run_id in self.leases if run_id not in unfinished],
        )
