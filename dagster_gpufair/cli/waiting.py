"""What there is to say of a run that waits: why, behind whom, until about when, and what would help."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import RenderableType

from dagster_gpufair.cli.comparison import comparison_json, side_by_side
from dagster_gpufair.cli.export import gpus, iso
from dagster_gpufair.cli.line import about, account, asked, points_json, waiter_json
from dagster_gpufair.cli.moment import Moment, Waiter, short_ids
from dagster_gpufair.cli.tables import (
    Column,
    age,
    clock,
    counted,
    number,
    plain,
    sentence,
    table,
)
from dagster_gpufair.ledger.leases import LeaseRecord
from dagster_gpufair.ledger.requests import RequestRecord
from dagster_gpufair.policy.quantities import format_gpus
from dagster_gpufair.scheduling.explain import Comparison, explain

ROWS = 8
"""Of those ahead, and of those that hold the pool."""

_NEXT = {
    "quota_exhausted": "It starts once runs of its team end, or with a larger quota or leave to borrow: "
    "`gpufair teams` shows both.",
    "borrow_limit": "It starts once runs of its team end, or with a higher borrow limit: "
    "`gpufair teams` shows it.",
    "insufficient_gpus": "A run that names several pools (gpufair/pool: h100,a100) or takes fewer GPUs "
    "(gpufair/gpus: 4-8) starts sooner: `gpufair pools` shows what is free.",
    "fragmented": "A run that takes fewer GPUs on each node (gpufair/gpus_per_node, or gpufair/gpus: "
    "4-8) starts sooner: `gpufair pools` shows the nodes.",
    "reserve_held": "It starts once runs end, or in a pool that others do not keep: `gpufair pools` "
    "shows what is free and what is held back.",
    "maintenance": "It starts once the nodes are back: `gpufair pools` shows them.",
    "run_limit": "It starts once fewer runs run, or with a higher limit in dagster.yaml.",
    "environment": "It starts once its code location answers: Dagster's UI shows it under Deployment.",
}


def story_of_waiting(
    moment: Moment, record: RequestRecord
) -> tuple[list[RenderableType], dict[str, Any]]:
    """In parts to print, and as data."""
    waiter = moment.waiter(record.id)
    assert waiter is not None, "what is queued is in the plan of the same moment"
    line = moment.lines[waiter.pool]
    ahead = line[: line.index(waiter)]
    compared = None if waiter.place is None else _compared(moment, waiter, ahead)
    holding = _holding(moment, waiter.pool)
    names = short_ids([*(one.request.id for one in line), *(lease.run_id for lease in holding)])
    parts: list[RenderableType] = [_waits(moment, waiter), _why(moment, waiter)]
    if waiter.place is not None:
        parts += [_expected(moment, waiter, holding), "", *_ahead(moment, waiter, ahead, names)]
        if compared is not None:
            title = f"why {names[compared.first.id]} comes first"
            parts += ["", *side_by_side(compared, title, names, moment.now)]
        if holding:
            parts += ["", *_held(moment, waiter.pool, holding, names)]
    parts += ["", _NEXT.get(waiter.reason or "", "`gpufair queue` shows the whole line.")]
    return parts, _as_json(moment, waiter, record, ahead, compared, holding)


def _compared(moment: Moment, waiter: Waiter, ahead: Sequence[Waiter]) -> Comparison | None:
    """With the first in line, of those that nothing outside the decision keeps from starting."""
    blocked = moment.state.blocked
    could = (one for one in ahead if one.place is not None and one.request.id not in blocked)
    first = next(could, None)
    if first is None:
        return None
    return explain(
        moment.policy, moment.settled, moment.now, waiter.pool, first.request, waiter.request
    )


def _holding(moment: Moment, pool: str) -> Sequence[LeaseRecord]:
    """The leases of a pool, those that end first on top."""

    def ends(lease: LeaseRecord) -> tuple[float, float]:
        bound = math.inf if lease.max_duration is None else lease.started_at + lease.max_duration
        return bound, lease.started_at

    return sorted((lease for lease in moment.leases if lease.pool == pool), key=ends)


def _waits(moment: Moment, waiter: Waiter) -> str:
    request = waiter.request
    since = f"since {clock(request.submitted, moment.now)} ({age(moment.now - request.submitted)})"
    what = f"Waits for {asked(request)} × {plain(waiter.pool)} {since}"
    if waiter.place is None:
        return f"{what}, and starts when the queue daemon next passes."
    return f"{what}: {waiter.reason}, place {waiter.place} in {plain(waiter.pool)}."


def _why(moment: Moment, waiter: Waiter) -> str:
    if waiter.place is None:
        return f"It starts as {waiter.class_.label}, with {number(waiter.points.score)} points."
    if waiter.request.id in moment.state.blocked:
        return sentence(waiter.message)
    return sentence(f"It {waiter.message}")


def _expected(moment: Moment, waiter: Waiter, holding: Sequence[LeaseRecord]) -> str:
    when = about(moment, waiter.request.id)
    if when != "?":
        return (
            f"Expected to start about {when}, at the latest: if all that runs takes the time it may, "
            "and nothing better comes."
        )
    if waiter.request.id in moment.state.blocked:
        return "When it starts depends on that, and is not known."
    unbounded = sum(lease.max_duration is None for lease in holding)
    if unbounded:
        return (
            f"When it starts is not known: {unbounded} of {counted(len(holding), 'run')} that "
            f"hold{'s' if len(holding) == 1 else ''} {plain(waiter.pool)} "
            f"do{'es' if unbounded == 1 else ''} not say how long (tag gpufair/max_duration)."
        )
    return "When it starts is not known yet."


def _ahead(
    moment: Moment, waiter: Waiter, ahead: Sequence[Waiter], names: Mapping[str, str]
) -> Iterator[RenderableType]:
    score = f"{number(waiter.points.score)} points as {waiter.class_.label}"
    if not ahead:
        yield f"Nothing is ahead of it in {plain(waiter.pool)}; it has {score}."
        return
    yield f"Ahead of it in {plain(waiter.pool)}, with its {score}:"
    columns = [
        Column("  #", right=True),
        Column("run"),
        Column("team"),
        Column("tier"),
        Column("asks", right=True),
        Column("class"),
        Column("points", right=True),
        Column("about"),
    ]
    rows = [
        (
            str(one.place or "-"),
            names[one.request.id],
            account(one.request),
            plain(one.request.tier),
            asked(one.request),
            one.class_.label,
            number(one.points.score),
            about(moment, one.request.id),
        )
        for one in ahead[:ROWS]
    ]
    yield table(columns, rows)
    if len(ahead) > ROWS:
        yield f"  and {len(ahead) - ROWS} more; `gpufair queue --all` shows them"


def _held(
    moment: Moment, pool: str, holding: Sequence[LeaseRecord], names: Mapping[str, str]
) -> Iterator[RenderableType]:
    yield f"Who holds {plain(pool)}:"
    columns = [
        Column("  run"),
        Column("team"),
        Column("tier"),
        Column("GPUs", right=True),
        Column("since", right=True),
        Column("until at most"),
        Column(),
    ]
    rows = [
        (
            f"  {names[lease.run_id]}",
            account(lease),
            plain(lease.tier),
            format_gpus(lease.gpus),
            age(moment.now - lease.started_at),
            "?"
            if lease.max_duration is None
            else clock(lease.started_at + lease.max_duration, moment.now),
            _how(moment, lease),
        )
        for lease in holding[:ROWS]
    ]
    yield table(columns, rows)
    if len(holding) > ROWS:
        yield f"  and {len(holding) - ROWS} more"


def _how(moment: Moment, lease: LeaseRecord) -> str:
    if lease.ungated:
        return "without a grant"
    return "borrowed" if lease.request_id in moment.borrowed else ""


def _as_json(
    moment: Moment,
    waiter: Waiter,
    record: RequestRecord,
    ahead: Sequence[Waiter],
    compared: Comparison | None,
    holding: Sequence[LeaseRecord],
) -> dict[str, Any]:
    return {
        "waiting": waiter_json(moment, waiter, record),
        "ahead": [
            {
                "run": one.request.id,
                "team": one.request.team,
                "project": one.request.project,
                "tier": one.request.tier,
                "gpus": gpus(one.request.gpus),
                "place": one.place,
                "class": one.class_.label,
                "points": points_json(one.points),
            }
            for one in ahead
        ],
        "compared": comparison_json(compared) if compared else None,
        "holding": [
            {
                "run": lease.run_id,
                "team": lease.team,
                "project": lease.project,
                "tier": lease.tier,
                "gpus": gpus(lease.gpus),
                "since": iso(lease.started_at),
                "until": iso(lease.started_at + lease.max_duration)
                if lease.max_duration is not None
                else None,
                "borrowed": lease.request_id in moment.borrowed,
                "ungated": lease.ungated,
            }
            for lease in holding
        ],
    }
