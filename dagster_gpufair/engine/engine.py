"""One pass after another over requests and leases, by the ledger's one writer.

A pass takes the writer's turn, follows what is to be seen of all that holds GPUs, plans, and carries the
plan out: written first, in one transaction, then acted on. Each step leaves the ledger right by itself, so
a pass that ends anywhere is made good by the next.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from sqlalchemy.orm import Session

from dagster_gpufair.engine import clock
from dagster_gpufair.engine.book import Book
from dagster_gpufair.engine.borrowed_use import BorrowedUse
from dagster_gpufair.engine.bounds import due, is_noted
from dagster_gpufair.engine.carry_out import CarriedOut, carry_out, end_waiting
from dagster_gpufair.engine.collector import collector_at_rest
from dagster_gpufair.engine.policy_file import PolicyWatch
from dagster_gpufair.engine.port import CannotGoOn, Holders, Launch
from dagster_gpufair.engine.reconcile import Verdict, judge
from dagster_gpufair.engine.rules import Rules
from dagster_gpufair.engine.tries import Tries
from dagster_gpufair.engine.writer_turn import Overtaken, WriterTurn
from dagster_gpufair.ledger import approvals, leases, lifecycle, nodes, requests, status
from dagster_gpufair.ledger.connect import Ledger, LedgerError
from dagster_gpufair.ledger.leases import LeaseRecord
from dagster_gpufair.ledger.requests import RequestRecord
from dagster_gpufair.ledger.retention import BITE, prune
from dagster_gpufair.ledger.set_clock import set_clock
from dagster_gpufair.ledger.status import ACCRUED, DAEMON
from dagster_gpufair.ledger.writer import turn_clock
from dagster_gpufair.scheduling.model import Plan, Start, State
from dagster_gpufair.scheduling.plan import plan

PRUNE_EVERY = 600.0
"""Seconds between two looks for what is older than the policy keeps."""


class Followed(NamedTuple):
    """What came of the holders of leases, and of those that wait, since the last pass.

    ``ended`` are leases that are over, how and when they ended; ``cancelled`` requests that wait no more,
    and why; ``spared`` leases that were to be stopped for these, and go on.
    """

    ended: Sequence[tuple[LeaseRecord, str, float]]
    cancelled: Sequence[tuple[RequestRecord, str]]
    spared: Sequence[LeaseRecord]


class Engine:
    """The open requests and leases of one ledger, and what this daemon does with them."""

    def __init__(
        self,
        ledger: Ledger,
        holders: Holders,
        watch: PolicyWatch,
        logger: logging.Logger,
        start_timeout: float,
    ):
        self.ledger = ledger
        self.turn = WriterTurn(ledger)
        self.rules = Rules(watch, logger)
        self.book = Book()
        self.cordoned: Mapping[str, frozenset[str]] = {}
        """The nodes out of service, by pool."""
        self.approved: Mapping[str, Mapping[str, Any]] = {}
        """By request id, what a person has approved and nobody has done yet."""
        self.to_launch: dict[str, LeaseRecord] = {}
        """By request id, what holds GPUs and waits to be launched by nobody else."""
        self._holders = holders
        self._logger = logger
        self._start_timeout = start_timeout
        self._borrowed = BorrowedUse()
        self._stops: Tries[int, LeaseRecord] = Tries("gpufair-stop", self._stop)
        self._continuations: Tries[str, RequestRecord] = Tries("gpufair-continue", self._go_on)
        self.not_going_on: dict[str, str] = {}
        """By request id, why what was stopped does not go on yet, where that was tried."""
        self._given_up: deque[tuple[RequestRecord, str]] = deque()
        """What was stopped and can never go on, and why: found by the tries, for the next pass."""
        self._pruned_at = 0.0

    # -- the turn -------------------------------------------------------------------------------

    def take_turn(self, now: float, *, clock_is_real: bool) -> bool:
        """Become or stay the one writer, and take up the policy; False while another daemon writes.

        The book is read anew after another writer's turn, and after a turn that `end_turn` did not end.

        Args:
            clock_is_real: whether ``now`` is the time of day, which may be set, and not a test's.
        """
        seen = self.rules.look_at_file()
        with self.ledger.writing() as session:
            epoch = self.turn.take(session)
            if epoch is None:
                return False
            last = status.get(session, DAEMON) or {}
            mark = last.get("clock")
            by = 0.0
            if clock_is_real:
                by, mark = self._heed_clock(session, mark, now)
            self.rules.look(session, now, seen)
            self.cordoned = nodes.cordoned_by_pool(session)
            approved = approvals.in_state(session, "approved")
            rejected = approvals.in_state(session, "rejected")
            goes_on = self.turn.goes_on(epoch)
            book = self.book if goes_on and not by else Book.opened(session)
            accrued = status.get(session, ACCRUED)
            if by and accrued is not None:
                accrued += by
                status.put(session, ACCRUED, accrued, now)
            said = {"at": now, "host": self.turn.host, "clock": mark}
            status.put(session, DAEMON, said, now)
        # Memory follows the ledger, once that is committed.
        if book is not self.book:
            self.book = book
            self._borrowed.resume(accrued)
        self.book.reject(rejected)
        self.approved = {id_: each.data for id_, each in approved.items()}
        self.turn.begin(epoch)
        return True

    def confirm_turn(self) -> None:
        """Make sure to be the one writer still.

        Raises:
            Overtaken: if another daemon is.
        """
        with self.turn.writing():
            pass

    def end_turn(self) -> None:
        """All that was begun in this turn has been done."""
        self.book.forget_sources()
        self.turn.end()

    def give_up_turn(self) -> None:
        """Let another daemon become the writer at once."""
        self.turn.give_up()

    def _heed_clock(self, session: Session, mark: object, now: float) -> tuple[float, object]:
        """Where the time of day was set, move what is counted from with it: (by so many seconds, mark)."""
        by, mark = clock.jumped(mark, turn_clock(session))
        if by:
            self._logger.warning(
                "The clock was set %s by %.0f s: what runs and what waits is counted on as before.",
                "forward" if by > 0 else "back",
                abs(by),
            )
            set_clock(session, by, now)
        return by, mark

    # -- following what happened ----------------------------------------------------------------

    def follow(self, unfinished: set[str], busy: Collection[str], now: float) -> Followed:
        """Bring the ledger and the book to what the holders of leases are seen to do.

        Args:
            unfinished: the ids of all runs that are not over.
            busy: the requests that this daemon is launching at this moment.
        """
        self._reread_continued()
        self._reread(id_ for id_ in busy if id_ in self.book.leases)
        sights = self._holders.look(self.book.leases.values())
        verdicts = [
            (lease, verdict)
            for lease in self.book.leases.values()
            if (sight := sights.get(lease.request_id)) is not None
            and (
                verdict := judge(
                    lease,
                    sight,
                    now,
                    is_busy=lease.request_id in busy,
                    start_timeout=self._start_timeout,
                )
            )
        ]
        self.to_launch = {
            lease.request_id: lease for lease, verdict in verdicts if verdict.what == "launch"
        }
        not_written = ("launch", "give_up", "never_came")
        to_write = [each for each in verdicts if each[1].what not in not_written]
        gone = self.book.cancelled(unfinished)
        how = self._holders.how_ended(gone) if gone else {}
        cancelled = [(each, how.get(each.id, "gone")) for each in gone] + self._cannot_go_on()
        spared = self._write_verdicts(to_write, cancelled, now) if to_write or cancelled else ()
        for lease, verdict in verdicts:
            if verdict.what in ("give_up", "never_came"):
                self._give_up(lease, verdict)
        ended = [
            (lease, verdict.why, verdict.at)
            for lease, verdict in verdicts
            if verdict.what in ("release", "preempt")
        ]
        return Followed(ended, cancelled, spared)

    def _reread(self, request_ids: Iterable[str]) -> None:
        """What is being launched is taken on by a thread: the ledger knows more of it than the book."""
        wanted = [self.book.leases[id_].id for id_ in request_ids]
        if wanted:
            with self.ledger.reading() as session:
                for id_ in wanted:
                    self.book.hold(leases.by_id(session, id_))

    def _reread_continued(self) -> None:
        """What goes on is written by its thread: the ledger knows more of it than the book."""
        known = self.book.to_go_on()
        self.not_going_on = {id_: why for id_, why in self.not_going_on.items() if id_ in known}
        if not known:
            return
        with self.ledger.reading() as session:
            now_known = requests.by_ids(session, known)
        for id_, request in now_known.items():
            if request != known[id_] and request.state == "queued":
                self.book.reenter(request)

    def _cannot_go_on(self) -> list[tuple[RequestRecord, str]]:
        """What was stopped and can never go on, as the tries have found, and why."""
        found = {}
        while self._given_up:
            request, why = self._given_up.popleft()
            if request.id in self.book.to_go_on():
                found[request.id] = (request, f"it was stopped, and cannot go on: {why}")
        return list(found.values())

    def go_on(self) -> None:
        """Have what was stopped for others wait again, as often as a try is due."""
        for id_, request in self._continuations.due(self.book.to_go_on()).items():
            try:
                self._continuations.try_(id_, request)
            except RuntimeError:
                self._logger.exception("Run %s cannot be gone on with now", request.continues)

    def _go_on(self, request: RequestRecord) -> None:
        epoch = self.turn.epoch
        if epoch is None:
            return
        try:
            self._holders.go_on(request, partial(self.turn.writing, epoch))
            self.not_going_on.pop(request.id, None)
        except Overtaken:
            pass
        except CannotGoOn as error:
            self._logger.error("Run %s was stopped, and cannot go on: %s", request.continues, error)
            self._holders.let_lie(request)
            self._given_up.append((request, str(error)))
        except Exception as error:
            self._logger.exception(
                "Run %s was stopped, and the run that goes on with its work could not be queued; it is "
                "tried again",
                request.continues,
            )
            self.not_going_on[request.id] = (
                f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
            )

    def accrue(self, now: float) -> None:
        """Add up what was borrowed, if it is time to."""
        in_force = self.rules.in_force
        if in_force is not None and self._borrowed.is_due(now):
            with self.turn.writing() as session:
                until = self._borrowed.accrue(session, in_force.policy, now)
                status.put(session, ACCRUED, until, now)
            self._borrowed.added(until)

    def _write_verdicts(
        self,
        verdicts: Sequence[tuple[LeaseRecord, Verdict]],
        cancelled: Sequence[tuple[RequestRecord, str]],
        now: float,
    ) -> Sequence[LeaseRecord]:
        """Write them all or none; the leases that need not be stopped any more."""
        changed: dict[str, LeaseRecord] = {}
        waiting: list[RequestRecord] = []
        spared: list[LeaseRecord] = []
        with self.turn.writing() as session:
            for lease, verdict in verdicts:
                if verdict.what == "begin":
                    lifecycle.begin(session, lease.id, verdict.at, now)
                elif verdict.what == "linger":
                    lifecycle.linger(session, lease.id, verdict.at, verdict.why, now)
                elif verdict.what == "recall":
                    blocked = ("environment", verdict.why)
                    lifecycle.recall(session, lease.id, now, verdict.why, blocked)
                elif verdict.what == "release":
                    lifecycle.release(session, lease.id, verdict.at, verdict.why)
                elif verdict.what == "preempt":
                    saved_at = lease.to_lease().since_saved
                    lifecycle.preempt(session, lease.id, verdict.at, verdict.why, saved_at)
                changed[lease.request_id] = leases.by_id(session, lease.id)
            for request, how in cancelled:
                spared += end_waiting(session, self.book, request, how, now)
            for lease in spared:
                changed.setdefault(lease.request_id, lease)
            again = [
                id_ for id_, lease in changed.items() if lease.state in ("recalled", "preempted")
            ]
            if again:
                waiting = list(requests.by_ids(session, again).values())
                self._reread_sources(session, changed.values())
        for request, _ in cancelled:
            self.book.leave(request.id)
        for id_, lease in changed.items():
            if lease.released_at is None:
                self.book.hold(lease)
            else:
                self.book.released(id_)
        self._enter_again(waiting)
        return [lease for lease in spared if lease.released_at is None]

    def _reread_sources(self, session: Session, changed: Iterable[LeaseRecord]) -> None:
        """When sources of what waits again started something last; a launch that never was is no start."""
        of = {
            (lease.team, lease.source)
            for lease in changed
            if lease.state in ("recalled", "preempted") and lease.source is not None
        }
        known = leases.source_starts(session, of)
        for source in of:
            if source in known:
                self.book.source_starts[source] = known[source]
            else:
                self.book.source_starts.pop(source, None)

    def _enter_again(self, waiting: Iterable[RequestRecord]) -> None:
        for request in waiting:
            if request.state == "queued":
                self.book.enter(request)
                if request.blocked_reason is not None:
                    self.book.blocked[request.id] = (
                        request.blocked_reason,
                        request.blocked_message or "",
                    )

    def _give_up(self, lease: LeaseRecord, verdict: Verdict) -> None:
        self._logger.error("Run %s is given up: %s.", lease.run_id, verdict.why)
        with self.turn.writing():
            if_not_begun = verdict.what == "never_came"
            self._holders.give_up(lease, verdict.why, if_not_begun=if_not_begun)

    def sweep(self, unfinished: Collection[str], now: float) -> None:
        """Cancel requests whose runs were over before the book ever heard of them.

        Called once what is new is in the book, so that the whole ledger is looked at only if there are any.
        """
        with self.ledger.reading() as session:
            if requests.count_waiting(session) == len(self.book.queued):
                return
            strangers = [
                request
                for request in requests.waiting(session)
                if request.id not in self.book.queued and request.run_id not in unfinished
            ]
        over = self._holders.how_ended(strangers) if strangers else {}
        if over:
            with self.turn.writing() as session:
                for id_, how in over.items():
                    lifecycle.cancel(session, [id_], now, how)

    def prune(self, now: float) -> None:
        """Now and then, delete a bite of what is older than the policy keeps; at once more, if there is."""
        in_force = self.rules.in_force
        if in_force is None or 0 <= now - self._pruned_at < PRUNE_EVERY:
            return
        with self.turn.writing() as session:
            keep = in_force.policy.ledger.keep.total_seconds()
            was_all = prune(session, now - keep) < BITE
        if was_all:
            self._pruned_at = now

    def enter(self, new: Sequence[RequestRecord]) -> None:
        """Put requests into the book, with what is known of their sources."""
        sources = self.book.new_sources(new)
        if sources:
            with self.ledger.reading() as session:
                self.book.source_starts |= leases.source_starts(session, sources)
        for request in new:
            self.book.enter(request)

    # -- launches -------------------------------------------------------------------------------

    def heed(self, epoch: int | None, launch: Launch, again: bool, now: float) -> None:
        """Act on what came of a launch, unless another writer has had a turn since it was begun.

        Args:
            epoch: the turn in which it was begun.
            again: whether a holder that could not be launched waits again, and is not over.
        """
        lease = self.book.leases.get(launch.lease.request_id)
        if epoch is None or epoch != self.turn.epoch or lease is None:
            return
        if lease.id != launch.lease.id or lease.state not in ("granted", "launching"):
            return
        with self.turn.writing(epoch) as session:
            if launch.kind == "launched":
                lifecycle.settle(session, lease.id, now)
            elif launch.kind in ("unreachable", "broken_off") and again:
                if self._holders.requeue(lease):
                    blocked = ("environment", launch.detail)
                    lifecycle.recall(session, lease.id, now, launch.detail, blocked)
            elif launch.kind in ("failed", "unreachable"):
                self._holders.give_up(lease, launch.detail, if_not_begun=True)
            became = leases.by_id(session, lease.id)
            waiting = requests.by_ids(session, [lease.request_id]) if became.void else {}
            self._reread_sources(session, [became])
        if became.released_at is None:
            self.book.hold(became)
        else:
            self.book.released(lease.request_id)
        self._enter_again(waiting.values())

    def recall(self, lease: LeaseRecord, why: str, now: float) -> None:
        """Give back the GPUs of a launch that never began."""
        held = self.book.leases.get(lease.request_id)
        if held is None or held.id != lease.id or held.state != "granted":
            return
        self._write_verdicts([(held, Verdict("recall", now, why))], (), now)

    # -- deciding -------------------------------------------------------------------------------

    def plan(self, blocked: Mapping[str, tuple[str, str]], now: float) -> Plan:
        """What would start now, and why the rest waits.

        Args:
            blocked: what something outside the decision keeps from starting, with reason and sentence.
        """
        with collector_at_rest():
            return plan(self.rules.policy, self.state(blocked, now), now)

    def state(self, blocked: Mapping[str, tuple[str, str]], now: float) -> State:
        """The moment as the decision wants it."""
        return self.book.state(
            self.rules.policy,
            now,
            used=self._borrowed.used,
            cordoned=self.cordoned,
            blocked=blocked,
        )

    # -- carrying it out ------------------------------------------------------------------------

    def carry_out(
        self,
        decided: Plan,
        starts: Sequence[Start],
        blocked: Mapping[str, tuple[str, str]],
        now: float,
    ) -> CarriedOut:
        """Write what a pass has decided, all or none; what came of it, to be acted on.

        Raises:
            Overtaken: if another daemon has become the writer, or nodes were taken out of service or put
                back since the pass began; nothing is written then.
        """
        assert self.rules.in_force is not None
        with self.turn.writing() as session:
            written = carry_out(
                session,
                self.book,
                decided,
                starts,
                blocked=blocked,
                used=self._borrowed.used,
                cordoned=self.cordoned,
                policy_version=self.rules.in_force.version,
                paused=self.rules.policy.paused,
                approved=self.approved,
                grace=self.rules.policy.grace,
                now=now,
            )
        written.enter(self.book)
        return written

    # -- bounds and stops -----------------------------------------------------------------------

    def keep_bounds(self, now: float) -> tuple[Sequence[LeaseRecord], Sequence[LeaseRecord]]:
        """Note which leases near the end of their time, and mean to stop those that are past it.

        Returns:
            (those to be told for the first time that it is near, those meant to be stopped now).
        """
        heard = self._holders.heard(self.book.leases.values())
        may_stop = {id_ for id_, said in heard.items() if said.may_stop}
        near, past = due(self.book.leases.values(), may_stop, now)
        saved = {
            self.book.leases[id_].id: said.saved_at
            for id_, said in heard.items()
            if said.saved_at is not None and is_noted(said.saved_at, self.book.leases[id_])
        }
        if not near and not past and not saved:
            return (), ()
        with self.turn.writing() as session:
            for id_, saved_at in saved.items():
                lifecycle.saved(session, id_, saved_at)
            told = [lease.id for lease in near if lifecycle.warn(session, lease.id, now)]
            meant = [lease.id for lease, why in past if lifecycle.stop(session, lease.id, why, now)]
            changed = {
                id_: leases.by_id(session, id_) for id_ in dict.fromkeys((*saved, *told, *meant))
            }
        for lease in changed.values():
            self.book.hold(lease)
        return [changed[id_] for id_ in told], [changed[id_] for id_ in meant]

    def make_stops(self) -> None:
        """Try to stop what is to be stopped and still there, as often as it is due."""
        stopping = {
            lease.id: lease for lease in self.book.leases.values() if lease.state == "stopping"
        }
        tries = self._stops.due(stopping)
        if not tries:
            return
        with self.turn.writing() as session:
            for lease in tries.values():
                lifecycle.tried_to_stop(session, lease.id)
        for lease in tries.values():
            self.book.hold(replace(lease, stop_tries=lease.stop_tries + 1))
        for lease in tries.values():
            try:
                self._stops.try_(lease.id, lease, before=lease.stop_tries)
            except RuntimeError:
                self._logger.exception("Run %s could not be told to stop now", lease.run_id)

    def _stop(self, lease: LeaseRecord) -> None:
        try:
            self._holders.stop(lease)
        except Exception:
            self._logger.exception(
                "Run %s was told to stop, and could not be; it is tried again", lease.run_id
            )

    def close(self) -> None:
        """End as one should: whoever comes next need not wait for the turn to run out."""
        with suppress(LedgerError):
            self.give_up_turn()
