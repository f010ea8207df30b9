"""How the workload went, from the record alone: who waited how long, what was used, what was refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from rich.console import RenderableType
from sqlalchemy.orm import Session

from dagster_gpufair.cli.demo.watch import Sight
from dagster_gpufair.cli.demo.workload import DemoRun
from dagster_gpufair.cli.instance.opening import no_policy
from dagster_gpufair.cli.moment.current import SHORT
from dagster_gpufair.cli.output.tables import Column, headline, table, under, warning
from dagster_gpufair.cli.output.text import counted, plain, sentence
from dagster_gpufair.ledger import leases, requests
from dagster_gpufair.ledger.audit import ungated_use, violations
from dagster_gpufair.ledger.connect import ledger_of
from dagster_gpufair.ledger.leases import LeaseRecord
from dagster_gpufair.ledger.requests import RequestRecord
from dagster_gpufair.policy.models import Policy
from dagster_gpufair.policy.quantities import duration_in_words, format_duration, format_gpus

if TYPE_CHECKING:
    from dagster import DagsterInstance, RunRecord

NOTHING = "–"


@dataclass(frozen=True)
class Ended:
    """One run of the demo at the end: how it ended, and what the ledger knows of it."""

    ask: DemoRun
    record: RunRecord
    request: RequestRecord | None
    waited: float | None

    @property
    def name(self) -> str:
        return f"{self.ask.team} {self.ask.job} {self.record.dagster_run.run_id[:SHORT]}"

    @property
    def refused(self) -> bool:
        return self.request is not None and self.request.state == "refused"

    @property
    def stops(self) -> int:
        """How often it was stopped for other work."""
        return self.request.preempted if self.request is not None else 0

    @property
    def started(self) -> bool:
        return self.record.start_time is not None

    @property
    def wrong(self) -> str | None:
        """What is not as it should be; None if all is."""
        status = self.record.dagster_run.status.value
        if self.ask.is_stopped and not self.stops:
            return "should have been stopped for other work, and was not"
        if self.ask.refused is None:
            return None if status == "SUCCESS" else f"should have succeeded, and is {status}"
        code = self.request.refusal_code if self.request else None
        if (status, code) == ("FAILURE", self.ask.refused):
            return None
        return f"should have been refused ({self.ask.refused}), and is {status}" + (
            f" ({code})" if code else ""
        )


@dataclass(frozen=True)
class Peaks:
    """The highest use there ever was, in thousandths of a GPU."""

    by_pool: Mapping[str, int]
    by_team: Mapping[tuple[str, str], int]
    borrowed: Mapping[tuple[str, str], int]


@dataclass(frozen=True)
class Verdict:
    """The workload at its end. ``took`` is in seconds; not ``done`` if it came to a standstill."""

    policy: Policy
    runs: Sequence[Ended]
    expected: int
    grants: int
    peaks: Peaks
    broken: Sequence[str]
    took: float
    done: bool

    @property
    def wrong(self) -> Sequence[str]:
        """Each run that did not end as it should, in a sentence."""
        found = [f"{run.name} {run.wrong}" for run in self.runs if run.wrong]
        missing = self.expected - len(self.runs)
        return found + ([f"{counted(missing, 'run')} was never submitted"] if missing else [])

    @property
    def ok(self) -> bool:
        """Whether every run ended as it should and no rule was ever broken."""
        return not self.wrong and not self.broken


def judge(instance: DagsterInstance, sight: Sight, took: float) -> Verdict:
    """Read the verdict out of the ledger.

    Raises:
        click.ClickException: if there was never a policy, so that there is no record.
    """
    if sight.moment is None:
        raise no_policy(instance)
    with ledger_of(instance).reading() as session:
        return _judge(session, sight, sight.moment.policy, took)


def _judge(session: Session, sight: Sight, policy: Policy, took: float) -> Verdict:
    record = leases.ever(session)
    known = requests.by_ids(session, sight.asks)
    started = {lease.request_id: lease.started_at for lease in reversed(record) if not lease.void}
    runs = [
        Ended(
            ask=ask,
            record=sight.last_of(run_id),
            request=known.get(run_id),
            # Who was stopped waits anew by its request; here its first wait counts.
            waited=started[run_id] - sight.records[run_id].create_timestamp.timestamp()
            if run_id in started
            else None,
        )
        for run_id, ask in reversed(list(sight.asks.items()))
    ]
    return Verdict(
        policy=policy,
        runs=runs,
        expected=sight.expected,
        grants=len(record),
        peaks=peaks(policy, record),
        broken=[*violations(session), *ungated_use(session)],
        took=took,
        done=sight.all_ended,
    )


def peaks(policy: Policy, record: Sequence[LeaseRecord]) -> Peaks:
    """The highest use of pools and teams; what ends at a moment is free for what starts then."""
    in_pool: Counter[str] = Counter()
    of_team: Counter[tuple[str, str]] = Counter()
    by_pool: Counter[str] = Counter()
    by_team: Counter[tuple[str, str]] = Counter()
    borrowed: Counter[tuple[str, str]] = Counter()
    for _, gpus, lease in _changes(record):
        key = (lease.team, lease.pool)
        in_pool[lease.pool] += gpus
        of_team[key] += gpus
        team = policy.teams.get(lease.team)
        quota = team.quota.get(lease.pool, 0) if team else 0
        by_pool[lease.pool] = max(by_pool[lease.pool], in_pool[lease.pool])
        by_team[key] = max(by_team[key], of_team[key])
        borrowed[key] = max(borrowed[key], of_team[key] - quota)
    return Peaks(by_pool, by_team, borrowed)


def _changes(record: Sequence[LeaseRecord]) -> Sequence[tuple[float, int, LeaseRecord]]:
    """Each change of use (when, by how much, whose), ends before starts at the same moment."""
    changes = []
    for lease in record:
        if lease.released_at == lease.started_at:
            continue
        changes.append((lease.started_at, lease.gpus, lease))
        if lease.released_at is not None:
            changes.append((lease.released_at, -lease.gpus, lease))
    return sorted(changes, key=lambda change: (change[0], change[1], change[2].id))


def summary(verdict: Verdict) -> Iterator[RenderableType]:
    """The verdict, for people."""
    came = f"{counted(len(verdict.runs), 'run')} in {duration_in_words(verdict.took)}"
    if verdict.done:
        yield headline(f"The workload is done: {came}.")
    else:
        yield warning(f"The workload is not done, and no run moves on any more: {came}.")
    yield ""
    yield _teams(verdict)
    yield ""
    yield _pools(verdict)
    yield ""
    if stopped := [run for run in verdict.runs if run.request is not None and run.stops]:
        yield headline("Stopped for other work, and gone on with")
        yield from (under(_gone_on(run)) for run in stopped)
        yield ""
    yield headline("Runs to look at")
    yield under(_notable(verdict))
    yield ""
    yield headline("Refused, as they should be")
    for run in verdict.runs:
        if run.refused and run.request is not None:
            yield under(f"{run.name} asked {run.ask.what}")
            yield under(
                under(f"{run.request.refusal_code}: {sentence(run.request.refusal_message or '')}")
            )
    yield ""
    if verdict.wrong:
        yield warning("Not as it should be")
        yield from (under(line) for line in verdict.wrong)
    grants = counted(verdict.grants, "grant")
    if verdict.broken:
        yield warning(f"violations: {len(verdict.broken)}, in the record of {grants}")
        yield from (under(sentence(line)) for line in verdict.broken)
    else:
        yield headline(
            f"violations: none, in the record of {grants} (pools, nodes, quotas, borrow limits, "
            "what is held back)"
        )


def _gone_on(run: Ended) -> str:
    assert run.request is not None
    times = "once" if run.stops == 1 else f"{run.stops} times"
    begun = run.request.id[:SHORT]
    return f"{run.name} went on with the work of {begun}, which was stopped {times}"


def _teams(verdict: Verdict) -> RenderableType:
    columns = (
        Column("team"),
        Column("runs", right=True),
        Column("started", right=True),
        Column("refused", right=True),
        Column("asked for GPUs", right=True),
        Column("waited (median)", right=True),
        Column("longest", right=True),
        Column("borrowed at most", wraps=True),
    )
    return table(columns, (_team(verdict, team) for team in verdict.policy.teams))


def _team(verdict: Verdict, team: str) -> Sequence[str]:
    runs = [run for run in verdict.runs if run.ask.team == team]
    waits = [run.waited for run in runs if run.waited is not None]
    borrowed = [
        f"{format_gpus(gpus)} {pool}"
        for (of, pool), gpus in sorted(verdict.peaks.borrowed.items())
        if of == team and gpus > 0
    ]
    return (
        plain(team),
        str(len(runs)),
        str(sum(run.started for run in runs)),
        str(sum(run.refused for run in runs)),
        str(sum(run.request is not None for run in runs)),
        _waited(median(waits)) if waits else NOTHING,
        _waited(max(waits)) if waits else NOTHING,
        ", ".join(borrowed) or NOTHING,
    )


def _pools(verdict: Verdict) -> RenderableType:
    columns = (
        Column("pool"),
        Column("GPUs", right=True),
        Column("highest use", right=True),
        Column("of each team at most, and its quota", wraps=True),
    )
    return table(columns, (_pool(verdict, pool) for pool in verdict.policy.pools))


def _pool(verdict: Verdict, pool: str) -> Sequence[str]:
    most = [
        f"{plain(name)} {format_gpus(verdict.peaks.by_team.get((name, pool), 0))} "
        f"({format_gpus(team.quota.get(pool, 0))})"
        for name, team in verdict.policy.teams.items()
    ]
    return (
        plain(pool),
        format_gpus(verdict.policy.pools[pool].capacity),
        format_gpus(verdict.peaks.by_pool.get(pool, 0)),
        ", ".join(most),
    )


def _notable(verdict: Verdict) -> RenderableType:
    columns = (
        Column("run"),
        Column("team"),
        Column("job"),
        Column("waited", right=True),
        Column("what to see", wraps=True),
    )
    rows = [
        (
            run.record.dagster_run.run_id[:SHORT],
            run.ask.team,
            run.ask.job,
            NOTHING if run.waited is None else _waited(run.waited),
            run.ask.note,
        )
        for run in verdict.runs
        if run.ask.note
    ]
    return table(columns, rows)


def _waited(seconds: float) -> str:
    return format_duration(max(0.0, seconds))
