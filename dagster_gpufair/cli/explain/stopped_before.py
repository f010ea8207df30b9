"""How often the work of a run was stopped for others, for whom, and what was lost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from dagster_gpufair.cli.moment.current import SHORT
from dagster_gpufair.cli.output.json_output import iso
from dagster_gpufair.cli.output.text import plain
from dagster_gpufair.cli.output.times import clock
from dagster_gpufair.ledger.leases import LeaseRecord
from dagster_gpufair.ledger.requests import RequestRecord
from dagster_gpufair.policy.quantities import ONE_GPU


def stopped_before(record: RequestRecord, held: Sequence[LeaseRecord], now: float) -> Iterator[str]:
    """A sentence for each time, the first one first."""
    for lease, goes_on in _stops(record, held):
        at = lease.released_at or now
        since = lease.to_lease().since_saved
        saved = (
            f"since its last checkpoint at {clock(since, now)}"
            if lease.checkpointed_at is not None
            else "since its start, as no checkpoint is known"
        )
        for_ = f" for {plain(lease.notice_for[:SHORT])}" if lease.notice_for else ""
        goes = (
            f"Run {plain(goes_on[:SHORT])} goes on with its work."
            if goes_on is not None
            else "The run that goes on with its work is not there yet."
        )
        yield (
            f"Run {plain(lease.run_id[:SHORT])} was stopped at {clock(at, now)}{for_} (rule "
            f"{lease.notice_rule}): {_lost(lease, at):.2g} GPU-hours of work were lost {saved}. {goes}"
        )


def stopped_before_json(record: RequestRecord, held: Sequence[LeaseRecord]) -> list[dict[str, Any]]:
    """The same for programs."""
    return [
        {
            "run": lease.run_id,
            "at": iso(lease.released_at),
            "for": lease.notice_for,
            "rule": lease.notice_rule,
            "checkpointed": iso(lease.checkpointed_at),
            "lost_gpu_hours": round(_lost(lease, lease.released_at or 0.0), 6),
            "goes_on_in": goes_on,
        }
        for lease, goes_on in _stops(record, held)
    ]


def _stops(
    record: RequestRecord, held: Sequence[LeaseRecord]
) -> Iterator[tuple[LeaseRecord, str | None]]:
    """Each lease that was stopped, and the run that went on."""
    last = None if record.continues is not None else record.run_id
    stopped = [lease for lease in held if lease.state == "preempted"]
    later = [*(lease.run_id for lease in stopped[1:]), last]
    yield from zip(stopped, later, strict=False)


def _lost(lease: LeaseRecord, until: float) -> float:
    """GPU-hours."""
    return max(0.0, until - lease.to_lease().since_saved) * lease.gpus / ONE_GPU / 3600
