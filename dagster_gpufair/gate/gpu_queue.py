"""The GPU half of Dagster's run queue: one pass after another over the ledger, by its one writer.

A pass takes the writer's turn, follows what happened to the runs since, plans, and grants. Each step
leaves the ledger right by itself, so a pass that ends anywhere is made good by the next.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from dagster import DagsterInstance, RunRecord
from sqlalchemy.orm import Session

from dagster_gpufair.engine.book import Book
from dagster_gpufair.engine.borrowed_use import BorrowedUse
from dagster_gpufair.engine.collector import collector_at_rest
from dagster_gpufair.engine.policy_file import PolicyWatch
from dagster_gpufair.engine.rules import Rules
from dagster_gpufair.engine.writer_turn import Overtaken, Turn
from dagster_gpufair.gate.arrivals import Arrivals
from dagster_gpufair.gate.ends import Ended, Ends
from dagster_gpufair.gate.ungated import Ungated
from dagster_gpufair.ledger import leases, nodes, requests, reservations, status
from dagster_gpufair.ledger.connect import Ledger
from dagster_gpufair.ledger.leases import LeaseRecord, recorded
from dagster_gpufair.ledger.status import DAEMON
from dagster_gpufair.scheduling.model import Plan, Reservation, Start, State
from dagster_gpufair.scheduling.plan import plan


class GpuQueue:
    """The open requests and leases of one instance, and what this daemon does with them."""

    def __init__(
        self, instance: DagsterInstance, ledger: Ledger, watch: PolicyWatch, logger: logging.Logger
    ):
        self.ledger = ledger
        self.turn = Turn(ledger)
        self.rules = Rules(watch, logger)
        self.book = Book()
        self.cordoned: Mapping[str, frozenset[str]] = {}
        """The nodes out of service, by pool."""
        self.unadmitted: Sequence[str] = ()
        """Queued GPU runs that no policy could be asked about yet."""
        self._ends = Ends(instance, ledger, self.turn)
        self._arrivals = Arrivals(instance, ledger, self.turn)
        self._ungated = Ungated(self.turn, logger)
        self._borrowed = BorrowedUse()

    # -- the turn -------------------------------------------------------------------------------

    def take_turn(self, now: float) -> bool:
        """Become or stay the one writer, and take up the policy; False while another daemon writes.

        The book is read anew after another writer's turn, and after a turn that `end_turn` did not end.
        """
        seen = self.rules.look_at_file()
        with self.ledger.writing() as session:
            epoch = self.turn.take(session, now)
            if epoch is None:
                return False
            self.rules.look(session, now, seen)
            self.cordoned = nodes.cordoned_by_pool(session)
            if not self.turn.goes_on(epoch):
                self._open_book(session)
            self._accrue(session, now)
            status.put(session, DAEMON, {"at": now, "host": self.turn.host}, now)
        self.turn.begin(epoch)
        return True

    def confirm_turn(self, now: float) -> None:
        """Make sure to be the one writer still.

        Raises:
            Overtaken: if another daemon is.
        """
        with self.turn.writing(now):
            pass

    def end_turn(self) -> None:
        """All that was begun in this turn has been done."""
        self.turn.end()

    def give_up_turn(self) -> None:
        """Let another daemon become the writer at once."""
        self.turn.give_up()

    def _open_book(self, session: Session) -> None:
        self.book = Book.opened(session)
        last = status.get(session, DAEMON)
        self._borrowed.resume(last["at"] if last else None)

    def _accrue(self, session: Session, now: float) -> None:
        in_force = self.rules.in_force
        if in_force is not None:
            self._borrowed.accrue(session, in_force.policy, self.book.leases.values(), now)

    # -- following what happened ----------------------------------------------------------------

    def follow(self, unfinished: Sequence[str], active: Sequence[RunRecord], now: float) -> Ended:
        """Bring the book and the ledger to what Dagster says its runs are.

        Args:
            unfinished: the ids of all unfinished runs, oldest first.
            active: the runs that hold a worker.

        Returns:
            What ended, and how.
        """
        there, in_force = set(unfinished), self.rules.in_force
        ended = self._ends.close(self.book, there, now)
        self._ends.sweep(self.book, there, now)
        self.unadmitted = self._arrivals.meet(self.book, unfinished, in_force, now)
        if in_force is not None:
            self._ungated.find(self.book, there, active, in_force, now)
        return ended

    # -- deciding -------------------------------------------------------------------------------

    def plan(self, blocked: Mapping[str, tuple[str, str]], now: float) -> Plan:
        """What would start now, and why the rest waits.

        Args:
            blocked: what something outside the decision keeps from starting, with reason and sentence.
        """
        with collector_at_rest():
            return plan(self.rules.policy, self.state(blocked), now)

    def state(self, blocked: Mapping[str, tuple[str, str]]) -> State:
        """The moment as the decision wants it."""
        return State(
            requests=self.book.in_order(),
            leases=[lease.to_lease() for lease in self.book.leases.values()],
            used=self._borrowed.used,
            source_starts=self.book.source_starts,
            cordoned=self.cordoned,
            blocked=blocked,
        )

    # -- writing what was decided ---------------------------------------------------------------

    def note_blocked(self, blocked: Mapping[str, tuple[str, str]], now: float) -> None:
        """Keep in the ledger what blocks which request, so that `gpufair queue` can say so too."""
        before = self.book.blocked
        changed = {id_: why for id_, why in blocked.items() if before.get(id_) != why}
        freed = [id_ for id_ in before if id_ not in blocked]
        if changed or freed:
            with self.turn.writing(now) as session:
                requests.block(session, changed)
                requests.unblock(session, freed)
            self.book.blocked = dict(blocked)

    def note_reserved(self, decided: Sequence[Reservation], now: float) -> None:
        """Keep in the ledger what a pass keeps for whom, if that is other than before."""
        rows, new = reservations.compared(self.book.reserved, decided, now)
        if rows != self.book.reserved:
            with self.turn.writing(now) as session:
                reservations.record(session, rows, new, now)
            self.book.reserved = rows

    def grant(self, starts: Sequence[Start], decided: Plan, now: float) -> list[LeaseRecord]:
        """Write the grants of a pass, all or none.

        Raises:
            Overtaken: if another daemon has become the writer, or nodes were taken out of service or put
                back since the pass began; nothing is written then.
        """
        assert self.rules.version is not None
        granted = []
        with self.turn.writing(now) as session:
            if nodes.cordoned_by_pool(session) != self.cordoned:
                raise Overtaken("other nodes are out of service than when it began")
            for start in starts:
                leases.grant(
                    session,
                    start.request.id,
                    pool=start.pool,
                    gpus=start.gpus,
                    nodes=start.nodes,
                    class_=start.class_,
                    at=now,
                    policy_version=self.rules.version,
                    data=judged(start, decided),
                )
                requests.told(session, start.request.id, "granted", start.class_.label, now)
                granted.append(leases.of_run(session, start.request.id)[-1])
        for lease in granted:
            self.book.granted(lease)
        return granted

    def put_back(self, lease: LeaseRecord, reason: str, message: str, now: float) -> None:
        """A granted run that could not be launched waits again, and its GPUs are free."""
        with self.turn.writing(now) as session:
            leases.requeue(session, lease.id, now, message, (reason, message))
            again = requests.by_ids(session, [lease.request_id])[lease.request_id]
        self.book.released(lease.request_id)
        if again.state == "queued":
            self.book.enter(again)
            self.book.blocked[again.id] = (reason, message)

    def warn(self, lease: LeaseRecord, now: float) -> None:
        """Note that a run has been told of its end."""
        with self.turn.writing(now) as session:
            leases.warned(session, lease.id, now)
        self.book.leases[lease.request_id] = replace(lease, warned_at=now)


def judged(start: Start, decided: Plan) -> dict[str, object]:
    """What a start was judged by, beside the best that waits in its pool: for `gpufair explain`."""
    beside = next((group for group in decided.waiting if group.pool == start.pool), None)
    return {
        "submitted": start.request.submitted,
        "saturation": start.saturation,
        "inside": start.inside,
        "points": start.points._asdict(),
        "beside": beside
        and {
            "request": beside.requests[0].id,
            "class": recorded(beside.class_),
            "saturation": beside.saturation,
            "inside": beside.inside,
            "points": beside.points._asdict(),
            "reason": beside.reason,
        },
    }
