"""What ``gpufair queue`` shows of each pool: what waits, what runs, and what is reserved."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from dagster_gpufair.cli.explain.gpu_holders import ends_words, holders_json
from dagster_gpufair.cli.explain.may_be_stopped import notice_line
from dagster_gpufair.cli.moment.current import Moment, Waiter
from dagster_gpufair.cli.moment.header_json import header_json
from dagster_gpufair.cli.moment.launched_by import launched_by
from dagster_gpufair.cli.moment.request_words import account, asked
from dagster_gpufair.cli.moment.reservations import reservation_json, reserved_for
from dagster_gpufair.cli.moment.waiting_json import waiter_json
from dagster_gpufair.cli.moment.warnings import warnings
from dagster_gpufair.cli.output.json_output import gpus, iso
from dagster_gpufair.cli.output.tables import Cell, Column, headline, table, under, warning
from dagster_gpufair.cli.output.text import number, plain
from dagster_gpufair.cli.output.times import age, clock
from dagster_gpufair.cli.pools.pool_use import PoolUse, counts_in_words
from dagster_gpufair.cli.queue.brief_reason import brief_reason
from dagster_gpufair.ledger.leases import LeaseRecord
from dagster_gpufair.ledger.requests import RequestRecord
from dagster_gpufair.policy.quantities import format_gpus
from dagster_gpufair.scheduling.waiting import words

ROWS = 20
"""Of each pool, unless all are asked for."""
_ACT_ON = {"environment": "red", "paused": "red", "approval": "yellow"}
"""Reasons that last until a person does something."""

_WAITING = (
    Column("#", right=True),
    Column("run"),
    Column("team"),
    Column("job"),
    Column("tier", drop=2),
    Column("asks", right=True),
    Column("since", right=True),
    Column("launched by", drop=1),
    Column("class", drop=3),
    Column("points", right=True, drop=4),
    Column("starts"),
    Column("why it waits", wraps=True),
)
_RUNNING = (
    Column("runs"),
    Column("team"),
    Column("job"),
    Column("tier", drop=2),
    Column("GPUs", right=True),
    Column("on", drop=4),
    Column("since", right=True),
    Column("launched by", drop=1),
    Column("ends"),
    Column(drop=3),
)


@dataclass(frozen=True)
class Shown:
    """One moment, and of it the runs that were asked for; ``records`` are theirs, by id.

    ``user`` is whose runs they are, if only one person's were asked for.
    """

    moment: Moment
    uses: Sequence[PoolUse]
    waiting: Mapping[str, Sequence[Waiter]]
    running: Mapping[str, Sequence[LeaseRecord]]
    records: Mapping[str, RequestRecord]
    user: str | None = None

    def parts(self, most: int | None, with_running: bool) -> Iterator[RenderableType]:
        """To print; at most so many of what waits in each pool."""
        moment = self.moment
        yield from warnings(moment)
        yield from _ungated(moment)
        for use in self.uses:
            line = self.waiting[use.name]
            yield headline(_headline(moment, use))
            if line:
                yield table(_WAITING, self._waiting_rows(line[:most]))
            if most is not None and len(line) > most:
                yield under(f"and {len(line) - most} more; --all shows them")
            if with_running and self.running[use.name]:
                yield table(_RUNNING, [self._running_row(one) for one in self.running[use.name]])
            for lease in moment.leases:
                if lease.pool == use.name and lease.notice_until is not None:
                    yield under(notice_line(moment, lease))
            for one in use.reservations:
                yield under(f"reserved {reserved_for(one, moment.names, moment.now)}")
            yield ""
        first = next((waiter for line in self.waiting.values() for waiter in line), None)
        if first is None:
            yield self._none_waits(with_running)
        else:
            yield f"`gpufair explain {moment.names[first.request.id]}` says more about a run."

    def _none_waits(self, with_running: bool) -> str:
        if self.user is None:
            return (
                "No run waits here. `gpufair pools` shows the GPUs, `gpufair teams` who uses them."
            )
        none = f"No run with the tag `user: {plain(self.user)}` waits"
        held = sum(len(leases) for leases in self.running.values())
        if not held:
            return (
                f"{none} or holds GPUs here. --mine goes by this tag of runs, and takes the name from "
                "GPUFAIR_USER, or else from the user of this machine. `gpufair queue --all` shows "
                "everybody's runs."
            )
        if with_running:
            return f"{none} here. `gpufair queue` shows everybody's runs."
        hold = "1 run that holds" if held == 1 else f"{held} runs that hold"
        return f"{none} here. `gpufair queue --mine --all` shows the {hold} GPUs."

    @property
    def facts(self) -> object:
        """What makes it another picture than before: not the time, and nothing that follows from it."""
        moment = self.moment
        return (
            moment.version.version,
            moment.daemon.overdue,
            bool(moment.file_trouble),
            [
                [(one.request.id, one.place, one.reason) for one in line]
                for line in self.waiting.values()
            ],
            [[one.id for one in leases] for leases in self.running.values()],
        )

    def as_json(self) -> dict[str, Any]:
        """All of it, for programs."""
        moment = self.moment
        return {
            **header_json(moment),
            "pools": [use.as_json() for use in self.uses],
            "waiting": [
                waiter_json(moment, waiter, self.records[waiter.request.id])
                for use in self.uses
                for waiter in self.waiting[use.name]
            ],
            "running": [
                {**held, **self._launch_json(lease)}
                for use in self.uses
                for lease, held in zip(
                    self.running[use.name],
                    holders_json(moment, self.running[use.name]),
                    strict=True,
                )
            ],
            "reservations": [
                reservation_json(one, moment.runs) for use in self.uses for one in use.reservations
            ],
            "ungated": [
                {
                    "run": lease.run_id,
                    "team": lease.team,
                    "pool": lease.pool,
                    "gpus": gpus(lease.gpus),
                    "since": iso(lease.started_at),
                }
                for lease in moment.leases
                if lease.ungated
            ],
        }

    def _launch_json(self, lease: LeaseRecord) -> dict[str, Any]:
        record = self.records[lease.request_id]
        return {"job": record.job_name, "launched_by": launched_by(record).as_json()}

    def _waiting_rows(self, line: Iterable[Waiter]) -> Iterator[Sequence[Cell]]:
        moment = self.moment
        for why, alike in groupby(line, key=lambda waiter: brief_reason(moment, waiter)):
            for at, waiter in enumerate(alike):
                request, record = waiter.request, self.records[waiter.request.id]
                said = why if at == 0 else f"{waiter.reason or 'starts'}, as above"
                yield (
                    str(waiter.place or "-"),
                    moment.names[request.id],
                    account(request),
                    plain(record.job_name),
                    plain(request.tier),
                    asked(request),
                    age(moment.now - request.submitted),
                    launched_by(record).words(),
                    waiter.class_.words,
                    number(waiter.points.score),
                    moment.expected(request.id).words(moment.now),
                    Text(said, style=_ACT_ON.get(waiter.reason or "", "")),
                )

    def _running_row(self, lease: LeaseRecord) -> Sequence[Cell]:
        moment, record = self.moment, self.records[lease.request_id]
        how: Cell = "" if moment.is_covered(lease) else "borrowed"
        return (
            moment.names[lease.request_id],
            account(lease),
            plain(record.job_name),
            plain(lease.tier),
            format_gpus(lease.gpus),
            ", ".join(plain(node) for node in sorted(lease.nodes)),
            age(moment.now - lease.started_at),
            launched_by(record).words(),
            Text(ends_words(moment, lease), style="yellow" if lease.state == "ending" else ""),
            Text("without a grant", style="yellow") if lease.ungated else how,
        )


def _ungated(moment: Moment) -> Iterator[RenderableType]:
    leases = [lease for lease in moment.leases if lease.ungated]
    for lease in leases[:ROWS]:
        yield warning(
            f"Run {plain(lease.run_id)} of team {plain(lease.team)} uses "
            f"{format_gpus(lease.gpus)} {plain(lease.pool)} without a grant since "
            f"{clock(lease.started_at, moment.now)}: this queue did not start it. "
            "Its GPUs count as in use until it ends."
        )
    if len(leases) > ROWS:
        yield warning(f"and {len(leases) - ROWS} more without a grant")


def _headline(moment: Moment, use: PoolUse) -> str:
    gone = f"not in the policy{counts_in_words(use)}"
    gpus_ = f"{format_gpus(use.gpus)} GPUs" if use.gpus else gone
    away = format_gpus(use.gpus - use.ready)
    parts = [
        plain(use.name),
        gpus_ + (f" ({away} in maintenance)" if use.ready < use.gpus else ""),
        f"{_amount(use.in_use)} in use{_of_them(use)}",
        f"{_amount(use.free)} free"
        + (f" ({words.part(use.held_back)} held back)" if use.held_back else ""),
        f"{use.waiting or 'none'} waiting",
    ]
    time_ = clock(moment.now, moment.now, seconds=True)
    return f"{' · '.join(parts)}    policy v{moment.version.version}, {time_}"


def _amount(thousandths: int) -> str:
    return format_gpus(thousandths) if thousandths else "none"


def _of_them(use: PoolUse) -> str:
    """`` (5 of them in maintenance, 3 borrowed)``, of those in use."""
    parts = []
    if use.in_maintenance:
        parts.append(f"{format_gpus(use.in_maintenance)} of them in maintenance")
    if use.borrowed:
        parts.append(f"{format_gpus(use.borrowed)} borrowed")
    return f" ({', '.join(parts)})" if parts else ""
