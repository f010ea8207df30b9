"""What the demo sees of its Dagster instance, time and again: runs, ledger, and what is new."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from sqlalchemy.exc import OperationalError

from dagster_gpufair.cli.demo.workload import DemoRun, Workload
from dagster_gpufair.cli.instance.opening import OpenLedger
from dagster_gpufair.cli.moment.current import SHORT, Moment, read_moment
from dagster_gpufair.cli.output.text import sentence
from dagster_gpufair.cli.output.times import clock
from dagster_gpufair.gate.submission.tags import CONTINUES
from dagster_gpufair.ledger import events, policies
from dagster_gpufair.ledger.connect import LedgerUnavailable
from dagster_gpufair.ledger.events import Event
from dagster_gpufair.policy.quantities import duration_in_words, format_gpus

if TYPE_CHECKING:
    from dagster import DagsterInstance, RunRecord


@dataclass(frozen=True)
class Sight:
    """One look. ``moment`` is None as long as there is no policy, ``news`` what happened since the last.

    ``asks`` are those of the demo's own runs, by run; ``gone_on`` has for each of these that was stopped
    for other work the run that goes on with its work now.
    """

    moment: Moment | None
    records: Mapping[str, RunRecord]
    asks: Mapping[str, DemoRun]
    expected: int
    news: Sequence[str]
    gone_on: Mapping[str, RunRecord] = field(default_factory=dict)

    @property
    def ended(self) -> int:
        """How many of the demo's runs have ended, and given back what they held."""
        held = {lease.request_id for lease in self.moment.leases} if self.moment else set()
        busy = held | (self.waiting or set())
        return sum(
            self.last_of(run_id).dagster_run.is_finished and run_id not in busy
            for run_id in self.asks
        )

    def last_of(self, run_id: str) -> RunRecord:
        """The run itself, or the one that goes on with its work now."""
        return self.gone_on.get(run_id) or self.records[run_id]

    @property
    def all_ended(self) -> bool:
        """Whether the workload is done."""
        return self.moment is not None and self.ended == self.expected

    @property
    def waiting(self) -> frozenset[str] | None:
        """The runs that wait for GPUs; None as long as that is not known."""
        if self.moment is None:
            return None
        return frozenset(request.id for request in self.moment.state.requests)

    def name(self, run_id: str) -> str:
        """A run in few words: ``3f2a91c0 nlp finetune``."""
        return sentence(f"{run_id[:SHORT]} {self.job(run_id)}".rstrip())

    def job(self, run_id: str) -> str:
        """Whose it is, and its job: ``nlp finetune``."""
        record = self.records.get(run_id)
        begun = run_id if record is None else _begun_by(record)
        ask = self.asks.get(begun)
        words = [ask.team] if ask is not None else []
        if record is not None:
            words.append(record.dagster_run.job_name)
        return sentence(" ".join(words))


class Watch:
    """Looks at an instance, and remembers what it has seen."""

    def __init__(self, instance: DagsterInstance, workload: Workload):
        self._instance = instance
        self._opened = OpenLedger(lambda: instance)
        self._workload = workload
        self._cursor = 0
        self._changed_at = time.monotonic()
        self._seen: object = None
        self._last: Sight | None = None

    @property
    def still_for(self) -> float:
        """Seconds in which nothing has changed."""
        return time.monotonic() - self._changed_at

    def look(self) -> Sight:
        """What is so now. If a database is busy for long, what was so before, without news."""
        try:
            sight, cursor = self._read()
        except (LedgerUnavailable, OperationalError):
            if self._last is None:
                raise
            return replace(self._last, news=())
        self._heed_change(sight, cursor)
        self._last, self._cursor = sight, cursor
        return sight

    def _read(self) -> tuple[Sight, int]:
        records = {record.dagster_run.run_id: record for record in self._instance.get_run_records()}
        asks = {
            run_id: ask
            for run_id, record in records.items()
            if (ask := self._workload.ask_of(run_id, record.dagster_run.tags)) is not None
        }
        gone_on: dict[str, RunRecord] = {}
        # The newest first.
        for record in records.values():
            if (begun := _begun_by(record)) in asks and CONTINUES in record.dagster_run.tags:
                gone_on.setdefault(begun, record)
        with self._opened.ledger.reading() as session:
            known = policies.in_force(session) is not None
            moment = read_moment(self._opened, session, time.time()) if known else None
            happened = events.since(session, self._cursor)
        sight = Sight(moment, records, asks, self._workload.expected, (), gone_on)
        news = [line for event in happened if (line := _news(event, sight)) is not None]
        return replace(sight, news=news), happened[-1].id if happened else self._cursor

    def _heed_change(self, sight: Sight, cursor: int) -> None:
        statuses = {id_: record.dagster_run.status for id_, record in sight.records.items()}
        seen = (cursor, statuses)
        if seen != self._seen:
            self._seen, self._changed_at = seen, time.monotonic()


def _begun_by(record: RunRecord) -> str:
    """The run that began what this one does: itself, if it goes on with nothing."""
    continues = record.dagster_run.tags.get(CONTINUES, "")
    return continues.rpartition("/")[0] or record.dagster_run.run_id


def _news(event: Event, sight: Sight) -> str | None:
    """An event in a line; None for what the tables show."""
    said = _said(event, sight)
    if said is None or event.run_id is None:
        return None
    return f"{clock(event.at, event.at, seconds=True)}  {sight.name(event.run_id)}: {said}"


def _said(event: Event, sight: Sight) -> str | None:
    data = event.data
    if event.kind == "granted":
        waited = duration_in_words(max(0.0, event.at - float(data.get("submitted", event.at))))
        where = f" on {', '.join(sorted(data['nodes']))}" if data.get("nodes") else ""
        gpus = format_gpus(int(data["gpus"]))
        return f"granted {gpus} {event.pool}{where} ({data.get('class')}), after {waited}"
    if event.kind == "released":
        gpus, held = format_gpus(int(data["gpus"])), duration_in_words(float(data["held"]))
        return f"{data.get('reason')}, releases {gpus} {event.pool} after {held}"
    if event.kind == "refused":
        return f"refused, {data.get('code')}: {sentence(str(data.get('message', '')))}"
    if event.kind == "recalled":
        return f"waits again: {sentence(str(data.get('reason', '')))}"
    if event.kind == "cancelled":
        return f"does not wait any more: {sentence(str(data.get('why', '')))}"
    if event.kind == "notice":
        until = clock(float(data["until"]), event.at, seconds=True)
        whom = f" for {sight.name(str(data['for']))}" if data.get("for") else ""
        return f"is told that it is stopped at {until}{whom} ({data.get('rule')})"
    if event.kind == "preempted":
        gpus = format_gpus(int(data["gpus"]))
        return f"stopped, releases {gpus} {event.pool}; its work waits to go on"
    if event.kind == "continued":
        return f"goes on with the work of {str(data['of'])[:SHORT]}"
    if event.kind == "ungated":
        return f"uses {format_gpus(int(data['gpus']))} {event.pool} without a grant"
    return None
