"""The GPU half of Dagster's run queue: one pass after another over the ledger, by its one writer.

A pass takes the writer's turn, follows what happened to the runs since, plans, and grants. Each step
leaves the ledger right by itself, so a pass that ends anywhere is made good by the next.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from dagster import DagsterInstance, DagsterRun, DagsterRunStatus, RunRecord, RunsFilter
from sqlalchemy.orm import Session

from dagster_gpufair.gate.admission import Refusal, Submission, admit
from dagster_gpufair.gate.as_off import as_off, not_carried_out
from dagster_gpufair.gate.book import Book
from dagster_gpufair.gate.collector import collector_at_rest
from dagster_gpufair.gate.dagster_internals import location_of
from dagster_gpufair.gate.policy_file import InForce, PolicyWatch
from dagster_gpufair.gate.recording import record
from dagster_gpufair.gate.refusing import refuse
from dagster_gpufair.gate.tags import asks_for_gpus
from dagster_gpufair.ledger import leases, nodes, requests, reservations, status, usage, writer
from dagster_gpufair.ledger.connect import Ledger
from dagster_gpufair.ledger.leases import LeaseRecord, recorded
from dagster_gpufair.ledger.requests import RequestRecord
from dagster_gpufair.ledger.statements import chunks
from dagster_gpufair.policy.models import Policy
from dagster_gpufair.policy.quantities import format_gpus
from dagster_gpufair.scheduling.accounts import account_of
from dagster_gpufair.scheduling.coverage import borrowed_part
from dagster_gpufair.scheduling.model import Account, Plan, Reservation, Start, State
from dagster_gpufair.scheduling.plan import plan

TURN_LASTS = 30.0
"""Seconds after which a daemon that has not been heard of may be replaced."""
REFUSED_AGAIN_AFTER = 60.0
"""Seconds after which a run that was refused and not failed is not in the middle of its submission."""
ACCRUE_EVERY = 10.0
"""Seconds between two additions to what each account has borrowed."""
SWEEP_EVERY = 60.0
"""Seconds between two looks at the whole ledger for requests that nobody will ever end."""
DAEMON_STATUS = "daemon"


class Overtaken(Exception):
    """The ledger has gone on without this daemon: nothing of what it was about to do counts."""


class Ended(NamedTuple):
    """What is over since the last pass: leases and waiting requests (by run id), with how the run ended."""

    leases: Sequence[tuple[LeaseRecord, str]]
    requests: Sequence[tuple[str, str]]


class GpuQueue:
    """The open requests and leases of one instance, and what this daemon does with them."""

    def __init__(
        self, instance: DagsterInstance, ledger: Ledger, watch: PolicyWatch, logger: logging.Logger
    ):
        self.ledger = ledger
        self.in_force: InForce | None = None
        self.cordoned: Mapping[str, frozenset[str]] = {}
        """The nodes out of service, by pool."""
        self.book = Book()
        self.epoch: int | None = None
        self.unadmitted: list[str] = []
        """Queued GPU runs that no policy could be asked about yet."""
        self.trouble: str | None = None
        """What is wrong with the policy file, if anything."""
        self._instance = instance
        self._watch = watch
        self._logger = logger
        self._holder = writer.Holder.here(time.time())
        self._in_doubt = True
        self._carried_out: tuple[int, Policy] | None = None
        self._reserved: Sequence[reservations.Row] = []
        self._accrued_at: float | None = None
        self._used: Mapping[tuple[Account, str], float] = {}
        self._blocked: dict[str, tuple[str, str]] = {}
        self._swept_at = 0.0
        self._uncounted: dict[str, int] = {}
        """GPU runs without a grant, and the policy version by which they cannot be counted."""

    # -- the turn -------------------------------------------------------------------------------

    def take_turn(self, now: float) -> bool:
        """Become or stay the one writer, and take up the policy; False while another daemon writes.

        The book is read anew after another writer's turn, and after a turn that `end_turn` did not end:
        what broke off may have come further in the ledger than in memory.
        """
        with self.ledger.writing() as session:
            epoch = writer.take(session, self._holder, now, TURN_LASTS)
            if epoch is None:
                self.epoch = None
                return False
            if self._watch.has_changed():
                self._take_up_policy(session, now)
            self.in_force = self._watch.in_force(session)
            if self.in_force is not None:
                self._carry_out(self.in_force)
            self.trouble = self._watch.trouble(session)
            self.cordoned = nodes.cordoned_by_pool(session)
            if epoch != self.epoch or self._in_doubt:
                self.book = Book.opened(session)
                self._blocked = self.book.blocked()
                self._reserved = reservations.current(session)
                last = status.get(session, DAEMON_STATUS)
                self._accrued_at = last["at"] if last else None
            if self.in_force is not None and now - (self._accrued_at or 0.0) >= ACCRUE_EVERY:
                self._accrue(session, now)
            status.put(session, DAEMON_STATUS, {"at": now, "host": self._holder.host}, now)
        self.epoch = epoch
        self._in_doubt = True
        return True

    def end_turn(self) -> None:
        """All that was begun in this turn has been done."""
        self._in_doubt = False

    def give_up_turn(self) -> None:
        """Let another daemon become the writer at once."""
        with self.ledger.writing() as session:
            writer.release(session, self._holder.id)
        self.epoch = None

    def confirm_turn(self, now: float) -> None:
        """Make sure to be the one writer still.

        Raises:
            Overtaken: if another daemon is.
        """
        with self.ledger.writing() as session:
            self._still_the_writer(session, now)

    def _take_up_policy(self, session: Session, now: float) -> None:
        before = self._watch.in_force(session)
        problems = self._watch.take_up(session, now, by=f"daemon on {socket.gethostname()}")
        after = self._watch.in_force(session)
        for problem in problems:
            self._logger.error("%s changes nothing: %s", self._watch.path, problem)
        if after is not None and (before is None or after.version != before.version):
            self._logger.info("GPU policy v%d is in force (%s)", after.version, self._watch.path)

    def _still_the_writer(self, session: Session, now: float) -> None:
        if self.epoch is None or not writer.still(
            session, self._holder.id, self.epoch, now, TURN_LASTS
        ):
            self.epoch = None
            raise Overtaken("another daemon has taken over the GPU queue")

    def _carry_out(self, in_force: InForce) -> None:
        """Take a policy as this version carries it out, and log what it leaves out, once."""
        if self._carried_out is not None and self._carried_out[0] == in_force.version:
            return
        left_out = not_carried_out(in_force.policy)
        if left_out:
            self._logger.warning(
                "GPU policy v%d sets %s: not carried out, since this version stops no running work for "
                "other work. Runs that wait say what would be stopped for them.",
                in_force.version,
                " and ".join(left_out),
            )
        self._carried_out = (in_force.version, as_off(in_force.policy))

    @property
    def policy(self) -> Policy:
        """The policy in force as this version carries it out."""
        assert self._carried_out is not None, "there is a policy in force"
        return self._carried_out[1]

    @property
    def version(self) -> int | None:
        """The version of the policy in force."""
        return self.in_force.version if self.in_force else None

    # -- following what happened ----------------------------------------------------------------

    def follow(self, unfinished: Sequence[str], active: Sequence[RunRecord], now: float) -> Ended:
        """Bring the book and the ledger to what Dagster says its runs are.

        Args:
            unfinished: the ids of all unfinished runs, oldest first.
            active: the runs that hold a worker.

        Returns:
            What ended, and how.
        """
        there = set(unfinished)
        ended = self._close(there, now)
        if now - self._swept_at >= SWEEP_EVERY:
            self._swept_at = now
            self._sweep(there, now)
        self._meet(self.book.unknown(unfinished), now)
        self._find_ungated(there, active, now)
        return ended

    def _close(self, unfinished: set[str], now: float) -> Ended:
        cancelled, over = self.book.gone(unfinished)
        if not cancelled and not over:
            return Ended((), ())
        ended_as = {
            found.dagster_run.run_id: found.dagster_run.status.value.lower()
            for found in self._records([*cancelled, *over])
        }
        with self.ledger.writing() as session:
            self._still_the_writer(session, now)
            for run_id in over:
                lease = self.book.leases[run_id]
                leases.release(session, lease.id, now, ended_as.get(run_id, "deleted"))
            by_end: dict[str, list[str]] = {}
            for run_id in cancelled:
                by_end.setdefault(ended_as.get(run_id, "deleted"), []).append(run_id)
            for why, ids in by_end.items():
                requests.cancel(session, ids, now, why)
        ended = Ended(
            [(self.book.leases[id_], ended_as.get(id_, "deleted")) for id_ in over],
            [(id_, ended_as.get(id_, "deleted")) for id_ in cancelled],
        )
        for run_id in cancelled:
            self.book.leave(run_id)
        for run_id in over:
            self.book.released(run_id)
        return ended

    def _sweep(self, unfinished: set[str], now: float) -> None:
        """Cancel requests whose runs were over before the book ever heard of them."""
        with self.ledger.reading() as session:
            waiting = requests.waiting(session)
        # A request is written before its run is queued, so a young one may be ahead of what is known.
        ghosts = [
            request.id
            for request in waiting
            if request.id not in unfinished
            and request.id not in self.book.queued
            and now - request.submitted_at >= SWEEP_EVERY
        ]
        if ghosts:
            with self.ledger.writing() as session:
                self._still_the_writer(session, now)
                requests.cancel(session, ghosts, now, "ended before it was queued")

    def _meet(self, run_ids: Sequence[str], now: float) -> None:
        """Look at runs for the first time: requests of the ledger's, runs without GPUs, or neither."""
        self.unadmitted = []
        if not run_ids:
            return
        with self.ledger.reading() as session:
            known = requests.by_ids(session, run_ids)
        if any(request.state == "granted" for request in known.values()):
            raise Overtaken("the ledger has grants that this daemon does not know")
        self._enter(request for request in known.values() if request.state == "queued")
        strangers = [id_ for id_ in run_ids if id_ not in known or known[id_].state == "refused"]
        for found in self._records(strangers):
            run = found.dagster_run
            if run.run_id in known:
                self._refuse_again(run, known[run.run_id], now)
            elif not asks_for_gpus(run.tags):
                self.book.others.add(run.run_id)
            elif run.status == DagsterRunStatus.QUEUED:
                self._admit(found, now)

    def _refuse_again(self, run: DagsterRun, refused: RequestRecord, now: float) -> None:
        """Fail a run whose refusal was recorded, by somebody who died before acting on it."""
        assert refused.finished_at is not None
        queued = run.status == DagsterRunStatus.QUEUED
        submitting = run.status == DagsterRunStatus.NOT_STARTED
        if queued or (submitting and now - refused.finished_at >= REFUSED_AGAIN_AFTER):
            code, message = refused.refusal_code or "", refused.refusal_message or ""
            refuse(self._instance, run, Refusal(code, message))

    def _enter(self, new: Iterable[RequestRecord]) -> None:
        """Put requests into the book, with what is known of their sources."""
        new = list(new)
        sources = {
            (request.team, request.source) for request in new if request.source is not None
        } - self.book.source_starts.keys()
        if sources:
            with self.ledger.reading() as session:
                self.book.source_starts |= leases.source_starts(session, sources)
        for request in new:
            self.book.enter(request)

    def _admit(self, found: RunRecord, now: float) -> None:
        """A queued run that the coordinator could not record, or that was queued without it."""
        run = found.dagster_run
        if self.in_force is None:
            self.unadmitted.append(run.run_id)
            return
        submission = _submission(run, min(now, found.create_timestamp.timestamp()))
        with self.ledger.writing() as session:
            self._still_the_writer(session, now)
            result = record(session, self.in_force, submission)
            stored = requests.by_ids(session, [run.run_id])
        if isinstance(result, Refusal):
            refuse(self._instance, run, result)
        else:
            self._enter(stored.values())

    def _find_ungated(self, unfinished: set[str], active: Sequence[RunRecord], now: float) -> None:
        """GPU runs that run without a lease are counted, so that nobody else is given their GPUs."""
        if self.in_force is None:
            return
        asked, self._uncounted = self._uncounted, {}
        for found in active:
            run = found.dagster_run
            if run.run_id in self.book.leases or run.run_id not in unfinished:
                continue
            if not asks_for_gpus(run.tags):
                continue
            request = self.book.queued.get(run.run_id)
            if request is None and asked.get(run.run_id) != self.in_force.version:
                request = self._unasked(run, now)
            if request is None:
                self._uncounted[run.run_id] = self.in_force.version
            else:
                self._count(request, now)

    def _count(self, request: RequestRecord, now: float) -> None:
        with self.ledger.writing() as session:
            self._still_the_writer(session, now)
            leases.ungated(session, request, request.pools[0], {}, now)
            lease = leases.of_run(session, request.run_id)[-1]
        self.book.granted(lease)
        self._logger.error(
            "Run %s of team %s uses %s × %s without a grant: it was not started by this queue. "
            "It is counted until it ends.",
            request.run_id,
            request.team,
            format_gpus(request.gpus),
            lease.pool,
        )

    def _unasked(self, run: DagsterRun, now: float) -> RequestRecord | None:
        """What a run would have asked for that never came by the queue."""
        assert self.in_force is not None
        request = admit(self.in_force.policy, _submission(run, now))
        if isinstance(request, Refusal):
            self._logger.error(
                "Run %s uses GPUs without a grant and cannot be counted: %s",
                run.run_id,
                request.message,
            )
            return None
        return RequestRecord.of(
            request,
            job_name=run.job_name,
            location=location_of(run),
            policy_version=self.in_force.version,
        )

    def _records(self, run_ids: Sequence[str]) -> Iterator[RunRecord]:
        for piece in chunks(run_ids):
            yield from self._instance.get_run_records(RunsFilter(run_ids=list(piece)))

    # -- deciding -------------------------------------------------------------------------------

    def plan(self, blocked: Mapping[str, tuple[str, str]], now: float) -> Plan:
        """What would start now, and why the rest waits.

        Args:
            blocked: what something outside the decision keeps from starting, with reason and sentence.
        """
        with collector_at_rest():
            return plan(self.policy, self.state(blocked), now)

    def state(self, blocked: Mapping[str, tuple[str, str]]) -> State:
        """The moment as the decision wants it."""
        return State(
            requests=self.book.in_order(),
            leases=[lease.to_lease() for lease in self.book.leases.values()],
            used=self._used,
            source_starts=self.book.source_starts,
            cordoned=self.cordoned,
            blocked=blocked,
        )

    def grant(self, starts: Sequence[Start], decided: Plan, now: float) -> list[LeaseRecord]:
        """Write the grants of a pass, all or none.

        Raises:
            Overtaken: if another daemon has become the writer, or nodes were taken out of service or put
                back since the pass began; nothing is written then.
        """
        assert self.in_force is not None
        granted = []
        with self.ledger.writing() as session:
            self._still_the_writer(session, now)
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
                    policy_version=self.in_force.version,
                    data=judged(start, decided),
                )
                requests.told(session, start.request.id, "granted", start.class_.label, now)
                granted.append(leases.of_run(session, start.request.id)[-1])
        for lease in granted:
            self.book.granted(lease)
        return granted

    def put_back(self, lease: LeaseRecord, reason: str, message: str, now: float) -> None:
        """A granted run that could not be launched waits again, and its GPUs are free."""
        with self.ledger.writing() as session:
            self._still_the_writer(session, now)
            leases.requeue(session, lease.id, now, message, (reason, message))
            again = requests.by_ids(session, [lease.request_id])[lease.request_id]
        self.book.released(lease.request_id)
        if again.state == "queued":
            self.book.enter(again)
            self._blocked[again.id] = (reason, message)

    def warn(self, lease: LeaseRecord, now: float) -> None:
        """Note that a run has been told of its end."""
        with self.ledger.writing() as session:
            self._still_the_writer(session, now)
            leases.warned(session, lease.id, now)
        self.book.leases[lease.request_id] = replace(lease, warned_at=now)

    def note_reserved(self, decided: Sequence[Reservation], now: float) -> None:
        """Keep in the ledger what a pass keeps for whom, if that is other than before."""
        rows, new = reservations.compared(self._reserved, decided, now)
        if rows != self._reserved:
            with self.ledger.writing() as session:
                self._still_the_writer(session, now)
                reservations.record(session, rows, new, now)
            self._reserved = rows

    def note_blocked(self, blocked: Mapping[str, tuple[str, str]], now: float) -> None:
        """Keep in the ledger what blocks which request, so that `gpufair queue` can say so too."""
        changed = {id_: why for id_, why in blocked.items() if self._blocked.get(id_) != why}
        freed = [id_ for id_ in self._blocked if id_ not in blocked]
        if changed or freed:
            with self.ledger.writing() as session:
                self._still_the_writer(session, now)
                requests.block(session, changed)
                requests.unblock(session, freed)
            self._blocked = dict(blocked)

    def _accrue(self, session: Session, now: float) -> None:
        """Add what was borrowed since the last time to what each account has had of late."""
        assert self.in_force is not None
        policy = self.in_force.policy
        half_life = policy.fair_share.half_life.total_seconds()
        if self._accrued_at is not None:
            borrowed = self._borrowed(policy, now)
            usage.accrue(session, borrowed, self._accrued_at, now, half_life)
        self._accrued_at = now
        self._used = usage.used(session, now, half_life)

    def _borrowed(self, policy: Policy, now: float) -> dict[tuple[Account, str], int]:
        """GPUs in the borrowed part of each account, in thousandths."""
        held = [lease.to_lease() for lease in self.book.leases.values()]
        borrowed = borrowed_part(policy, held, now)
        amounts: dict[tuple[Account, str], int] = {}
        for lease in held:
            if lease.id in borrowed:
                key = (account_of(policy, lease, lease.pool), lease.pool)
                amounts[key] = amounts.get(key, 0) + lease.gpus
        return amounts


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


def _submission(run: DagsterRun, at: float) -> Submission:
    return Submission(run.run_id, run.job_name, location_of(run), run.tags, at)
