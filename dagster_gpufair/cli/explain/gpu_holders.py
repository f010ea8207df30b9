"""Who holds the GPUs that a request waits for, and until when."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import RenderableType

from dagster_gpufair.cli.moment.current import Moment, Waiter
from dagster_gpufair.cli.moment.expected_start import Expected
from dagster_gpufair.cli.moment.request_words import account
from dagster_gpufair.cli.output.json_output import gpus, iso
from dagster_gpufair.cli.output.tables import Column, table
from dagster_gpufair.cli.output.text import plain
from dagster_gpufair.cli.output.times import age, clock
from dagster_gpufair.ledger.leases import PREEMPTION, LeaseRecord
from dagster_gpufair.policy.quantities import format_gpus

_ROWS = 8
_OWN_TEAM = ("quota_exhausted", "borrow_limit", "ceiling")
"""Reasons that only the runs of its own team can end."""
_COLUMNS = (
    Column("  run"),
    Column("team"),
    Column("tier", drop=1),
    Column("GPUs", right=True),
    Column("since", right=True),
    Column("ends"),
    Column(drop=2),
)


def holders_in(moment: Moment, pool: str) -> Sequence[LeaseRecord]:
    """The leases of a pool, those that end first on top."""
    return _by_end([lease for lease in moment.leases if lease.pool == pool])


def who_holds(moment: Moment, waiter: Waiter) -> Iterator[RenderableType]:
    """Whose leases a request waits for, by its reason, in parts to print."""
    team, pool = plain(waiter.request.team), plain(waiter.pool)
    leases, title = holders_in(moment, waiter.pool), f"Who holds {pool}:"
    if waiter.reason == "ceiling":
        # A ceiling bounds a team in all pools.
        leases, title = _by_end(moment.leases), f"What {team} runs:"
    elif waiter.reason in _OWN_TEAM:
        title = f"What {team} runs in {pool}:"
    if waiter.reason in _OWN_TEAM:
        leases = [lease for lease in leases if lease.team == waiter.request.team]
    if leases:
        yield title
        yield table(_COLUMNS, [_row(moment, lease) for lease in leases[:_ROWS]])
        if len(leases) > _ROWS:
            yield f"  and {len(leases) - _ROWS} more"


def holders_json(moment: Moment, leases: Sequence[LeaseRecord]) -> list[dict[str, Any]]:
    """Leases for programs."""
    return [
        {
            "run": lease.run_id,
            "team": lease.team,
            "project": lease.project,
            "tier": lease.tier,
            "pool": lease.pool,
            "gpus": gpus(lease.gpus),
            "since": iso(lease.started_at),
            "about": iso(ends.about),
            "at_the_latest": iso(ends.latest),
            "covered": moment.is_covered(lease),
            "ungated": lease.ungated,
            "being_launched": is_being_launched(lease),
            "lingering": lease.state == "ending",
        }
        for lease in leases
        for ends in [ends_of(moment, lease)]
    ]


def _by_end(leases: Sequence[LeaseRecord]) -> Sequence[LeaseRecord]:
    def ends(lease: LeaseRecord) -> tuple[float, float]:
        bound = lease.to_lease().ends
        return math.inf if bound is None else bound, lease.started_at

    return sorted(leases, key=ends)


def ends_of(moment: Moment, lease: LeaseRecord) -> Expected:
    """When a lease ends: by its max_duration, and as such runs usually do."""
    latest = lease.to_lease().ends
    return Expected.of(latest, moment.usual_ends.get(lease.request_id))


def is_being_launched(lease: LeaseRecord) -> bool:
    """Whether it holds GPUs for work that has not begun."""
    return lease.state in ("granted", "launching")


def ends_words(moment: Moment, lease: LeaseRecord) -> str:
    """When a lease ends; that its work has not begun; that its run is over, and its processes are not."""
    if is_being_launched(lease):
        return "being launched"
    if lease.state == "ending":
        return "run is over"
    if lease.stop_why == PREEMPTION:
        return "being stopped"
    if lease.state == "notice" and lease.notice_until is not None:
        return f"stopped {clock(lease.notice_until, moment.now)}"
    return ends_of(moment, lease).words(moment.now)


def _row(moment: Moment, lease: LeaseRecord) -> Sequence[str]:
    how = "" if moment.is_covered(lease) else "borrowed"
    return (
        f"  {moment.names[lease.request_id]}",
        account(lease),
        plain(lease.tier),
        format_gpus(lease.gpus),
        age(moment.now - lease.started_at),
        ends_words(moment, lease),
        "without a grant" if lease.ungated else how,
    )
