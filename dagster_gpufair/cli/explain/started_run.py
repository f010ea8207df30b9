"""What there is to say of a run that was given GPUs: when, why then, and on whose quota."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from sqlalchemy.orm import Session

from dagster_gpufair.cli.explain.comparison import comparison_json, side_by_side
from dagster_gpufair.cli.explain.gpu_holders import is_being_launched
from dagster_gpufair.cli.explain.may_be_stopped import may_be_stopped, notice_json
from dagster_gpufair.cli.explain.runner_up import compared_before, of_one_source
from dagster_gpufair.cli.moment.current import Moment, short_ids
from dagster_gpufair.cli.output.json_output import gpus, iso
from dagster_gpufair.cli.output.text import LONGEST_SENTENCE, number, plain, sentence
from dagster_gpufair.cli.output.times import after, age_in_words, clock
from dagster_gpufair.ledger import requests
from dagster_gpufair.ledger.events import Event
from dagster_gpufair.ledger.leases import LeaseRecord
from dagster_gpufair.ledger.requests import RequestRecord
from dagster_gpufair.policy.quantities import format_gpus
from dagster_gpufair.scheduling.explaining.comparison import Comparison
from dagster_gpufair.scheduling.model import Class, Points
from dagster_gpufair.scheduling.order import Standing
from dagster_gpufair.scheduling.waiting import words

_SHORT = 120
"""Seconds: the times of what was shorter are told to the second."""
_ONE_SOURCE = (
    "Both come from the same source. Its waiting time starts again with each of its runs, so the points "
    "for waiting and source are left out."
)


def story_of_start(
    session: Session,
    lease: LeaseRecord,
    happened: Sequence[Event],
    moment: Moment | None,
    now: float,
) -> tuple[list[RenderableType], dict[str, Any]]:
    """In parts to print, and as data. ``moment`` is only needed while the lease is open."""
    grant = _grant(lease, happened)
    judged = _standing(grant, lease.run_id, grant.get("submitted"))
    best = _best_that_waited(session, grant)
    compared = _compared(judged, lease, best, grant) if judged and best else None
    parts: list[RenderableType] = [holds(lease, now)]
    if moment is not None:
        parts += _on_whose(lease, moment)
    if judged is not None:
        parts += ["", *_why_then(lease, judged, compared, grant, now)]
        if compared is not None and best is not None and of_one_source(lease, best):
            parts.append(_ONE_SOURCE)
    parts += ["", _next(lease)]
    data = {
        "lease": {
            "pool": lease.pool,
            "gpus": gpus(lease.gpus),
            "nodes": {node: gpus(part) for node, part in lease.nodes.items()},
            "since": iso(lease.started_at),
            "until": iso(lease.to_lease().ends),
            "released": iso(lease.released_at),
            "ended_as": lease.release_reason,
            "class": lease.class_.label if lease.class_ is not None else None,
            "covered": None if moment is None else moment.is_covered(lease),
            "ungated": lease.ungated,
            "notice": notice_json(lease),
            "kept_until": iso(lease.kept_until),
            "checkpointed": iso(lease.checkpointed_at),
            "host": _machine(lease) if lease.processes else None,
            "processes": sorted(int(pid) for pid in lease.processes or {}),
            "policy_version": lease.policy_version,
        },
        "compared": comparison_json(compared) if compared else None,
    }
    return parts, data


def _grant(lease: LeaseRecord, happened: Sequence[Event]) -> Mapping[str, Any]:
    """What the lease's ``granted`` event says; nothing for one that was not granted."""
    said = (event.data for event in happened if event.kind == "granted")
    return next((data for data in said if data.get("lease") == lease.id), {})


def _standing(judged: Mapping[str, Any], run_id: str, submitted: float | None) -> Standing | None:
    """As it was recorded; None where it was not, or by a version that counted other points."""
    points = judged.get("points") or {}
    if submitted is None or "saturation" not in judged or set(points) != set(Points._fields):
        return None
    return Standing(
        class_=Class[judged["class"].upper()],
        saturation=judged["saturation"],
        points=Points(**points),
        submitted=submitted,
        id=run_id,
        inside=judged.get("inside", 0.0),
    )


def _best_that_waited(session: Session, grant: Mapping[str, Any]) -> RequestRecord | None:
    """Of those that waited in the pool when the pass was over."""
    beside = grant.get("beside")
    if not beside:
        return None
    return requests.by_ids(session, [beside["request"]]).get(beside["request"])


def _compared(
    judged: Standing, lease: LeaseRecord, best: RequestRecord, grant: Mapping[str, Any]
) -> Comparison | None:
    waited = _standing(grant["beside"], best.id, best.submitted_at)
    return None if waited is None else compared_before(judged, lease, waited, best)


def holds(lease: LeaseRecord, now: float) -> str:
    """What it holds, since when and until when; or what it held."""
    where = f" on {', '.join(plain(node) for node in sorted(lease.nodes))}" if lease.nodes else ""
    what = f"{format_gpus(lease.gpus)} {plain(lease.pool)}{where}"
    since = clock(lease.started_at, now)
    if lease.released_at is not None:
        held = f"It held {what} {_held(lease.started_at, lease.released_at, now)}: {_ended(lease)}."
        if lease.over_at is None:
            return held
        over = clock(lease.over_at, now, seconds=True)
        return f"{held} The run was over at {over}, but processes of it went on and held the GPUs."
    verb = "It uses" if lease.ungated else "It holds"
    held = age_in_words(now - lease.started_at)
    if lease.state == "ending":
        return (
            f"{verb} {what} since {since} ({held}), though the run is over: processes of it are still "
            f"there. The GPUs are free when these have ended.{_where_to_look(lease)}"
        )
    if is_being_launched(lease):
        return (
            f"It was granted {what} at {clock(lease.started_at, now, seconds=True)} "
            f"({held} ago) and is being launched: it holds them already, and its work has not begun."
        )
    bound = lease.to_lease(now).ends
    until = "until it ends" if bound is None else f"until {clock(bound, now)} at the latest"
    return f"{verb} {what} since {since} ({held}), {until}."


def _where_to_look(lease: LeaseRecord) -> str:
    """The command that shows the processes that were seen of a run, if any were: on their machine."""
    if not lease.processes:
        return ""
    pids = ",".join(sorted(lease.processes, key=int))
    return f" On {_machine(lease)}, `ps -o pid,lstart,args -p {pids}` shows which of them go on."


def _machine(lease: LeaseRecord) -> str:
    """Where process ids mean something: a name of a host, or of a container."""
    return plain((lease.launch_host or "").partition(" ")[0] or "the daemon's machine")


def _held(start: float, end: float, now: float) -> str:
    """``from 12:00 to 12:35 (35 min)``; with seconds where minutes would not do."""
    short = end - start < _SHORT
    times = " to ".join(clock(at, now, seconds=short) for at in (start, end))
    return f"from {times} ({age_in_words(end - start)})"


def _ended(lease: LeaseRecord) -> str:
    return plain(lease.release_reason or "released")


def _on_whose(lease: LeaseRecord, moment: Moment) -> Iterator[str]:
    """On whose quota it runs, and who may have the GPUs back before it ends."""
    if lease.ungated:
        yield "This queue did not start it, so it has no grant. Its GPUs count as in use while it runs."
    holding = moment.snapshot.accounts.holding(lease.to_lease(), lease.pool)
    borrowed = moment.snapshot.running.borrowed(lease.team, lease.pool)
    own, teams = (plain(words.used(one), LONGEST_SENTENCE) for one in (holding, holding.team))
    if lease.request_id not in borrowed.inside:
        yield f"Its GPUs are within the quota: {own}. {may_be_stopped(lease, moment)}"
    elif lease.request_id not in borrowed.from_others:
        yield (
            f"Its GPUs are within the quota of its team ({teams}), and over that of its project ({own}). "
            f"{may_be_stopped(lease, moment)}"
        )
    else:
        yield f"{_counted_as_borrowed(lease, moment)}: {teams}. {may_be_stopped(lease, moment)}"


def _counted_as_borrowed(lease: LeaseRecord, moment: Moment) -> str:
    """Why its GPUs are borrowed; by design §4 the quota goes to higher tiers first, then to older leases."""
    if lease.class_ is not Class.GUARANTEED:
        return "Its GPUs are borrowed"
    its_tier = moment.policy.tiers.get(lease.tier)
    first = [
        other
        for other in moment.leases
        if (other.team, other.pool) == (lease.team, lease.pool)
        and moment.is_covered(other)
        and its_tier is not None
        and (tier := moment.policy.tiers.get(other.tier)) is not None
        and tier.points > its_tier.points
    ]
    named = " and ".join(
        f"{moment.names[other.request_id]} ({plain(other.tier)})" for other in first[:2]
    )
    because = (
        f", because {named} use{'s' if len(first) == 1 else ''} the quota first" if named else ""
    )
    return f"It started within the quota; its GPUs count as borrowed now{because}"


def _why_then(
    lease: LeaseRecord,
    judged: Standing,
    compared: Comparison | None,
    grant: Mapping[str, Any],
    now: float,
) -> Iterator[RenderableType]:
    yield (
        f"It started at {clock(lease.started_at, now)}, "
        f"{after(lease.started_at - judged.submitted)}, as {judged.class_.words} with "
        f"{number(judged.points.score)} points."
    )
    if compared is None:
        yield f"No other run waited in {plain(lease.pool)} then."
        return
    names = short_ids([compared.first.id, compared.second.id])
    other, reason = names[compared.second.id], sentence(str(grant["beside"].get("reason")))
    if compared.comes_first == judged.id:
        yield f"Next in line for {plain(lease.pool)} after that pass was {other}{_because(reason)}."
        title = f"why it came before {other}"
    else:
        yield f"A run that ranks higher had to wait then: {other}{_because(reason)}."
        title = f"why {other} ranks higher"
    yield from side_by_side(compared, title, names, now)


def _because(reason: str) -> str:
    """Why a run waited, after its name."""
    return ", whose code location was unavailable" if reason == "environment" else f" ({reason})"


def _next(lease: LeaseRecord) -> str:
    if lease.released_at is not None:
        return "`gpufair queue` shows what waits now."
    return f"`gpufair queue --pool {plain(lease.pool)}` shows who waits for them."
