"""``gpufair explain``: why a run waits, why it started when it did, or why it never will."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from rich.console import RenderableType
from sqlalchemy.orm import Session

from dagster_gpufair.cli.explain.find_run import find_request, find_run, run_argument
from dagster_gpufair.cli.explain.started_run import story_of_start
from dagster_gpufair.cli.explain.stopped_before import stopped_before, stopped_before_json
from dagster_gpufair.cli.explain.waiting_run import story_of_waiting
from dagster_gpufair.cli.history.event_json import event_json
from dagster_gpufair.cli.instance.opening import OpenLedger, opened_ledger
from dagster_gpufair.cli.instance.option import instance_option
from dagster_gpufair.cli.moment.current import SHORT, read_moment
from dagster_gpufair.cli.moment.launched_by import launched_by
from dagster_gpufair.cli.moment.request_words import title
from dagster_gpufair.cli.moment.warnings import warnings
from dagster_gpufair.cli.output.json_output import gpus, iso, json_option, show_json
from dagster_gpufair.cli.output.tables import headline, show
from dagster_gpufair.cli.output.text import plain, whole_sentence
from dagster_gpufair.cli.output.times import age_in_words, clock
from dagster_gpufair.gate.submission.tags import asks_for_gpus
from dagster_gpufair.ledger import history, leases
from dagster_gpufair.ledger.events import Event
from dagster_gpufair.ledger.requests import RequestRecord

if TYPE_CHECKING:
    from dagster import DagsterRun

_EVENTS_SHOWN = 8
_HAPPENED = {
    "recalled": "waits again",
    "requeued": "waits again",
    "ungated": "found running",
    "released": "ended",
    "unreserved": "reservation lost",
    "lingering": "run over, processes go on",
}


class Story(NamedTuple):
    """What there is to say of a run: in parts to print, and as data."""

    parts: Sequence[RenderableType]
    data: dict[str, Any]


@click.command()
@run_argument
@instance_option
@json_option
def explain(run_id: str, home: Path | None, as_json: bool) -> None:
    """Why a run waits, or why it started when it did.

    The first characters of RUN_ID are enough, as Dagster's UI shows them.
    """
    with opened_ledger(home) as opened, opened.ledger.reading() as session:
        story = _tell(opened, session, run_id, time.time())
    if as_json:
        show_json(story.data)
    else:
        show(*story.parts)


def _tell(opened: OpenLedger, session: Session, run_id: str, now: float) -> Story:
    record = find_request(session, run_id, now)
    if record is None:
        return _not_in_the_ledger(find_run(opened.instance, run_id), run_id)
    happened = history.of_request(session, record)
    held = leases.of_requests(session, [record.id])
    parts: list[RenderableType] = [
        headline(title(record)),
        _history(happened, now),
        *stopped_before(record, held, now),
    ]
    if record.state == "queued":
        moment = read_moment(opened, session, now)
        more, data = story_of_waiting(moment, record)
        parts = [*warnings(moment), *parts]
    elif record.state == "refused":
        more, data = _refused(record, now)
    elif held:
        still = held[-1].released_at is None
        its_moment = read_moment(opened, session, now) if still else None
        more, data = story_of_start(session, held[-1], happened, its_moment, now)
        if its_moment is not None:
            parts = [*warnings(its_moment), *parts]
    else:
        more, data = _cancelled(record, happened, now)
    data["stopped"] = stopped_before_json(record, held)
    return Story([*parts, *more], {**_facts(record), **data, "events": _events_json(happened)})


def _history(happened: Sequence[Event], now: float) -> str:
    """``submitted 11:50:02 · granted 12:40:07``."""
    # A reservation that ends as its run starts, or is gone, is not lost.
    over = {one.at for one in happened if one.kind in ("granted", "cancelled")}
    happened = [
        one
        for one in happened
        if one.kind not in ("waits", "saved") and (one.kind != "unreserved" or one.at not in over)
    ]
    shown = happened[-_EVENTS_SHOWN:]
    told = [
        f"{_HAPPENED.get(one.kind, one.kind)} {clock(one.at, now, seconds=True)}{_to_whom(one)}"
        for one in shown
    ]
    return " · ".join(["…", *told] if len(shown) < len(happened) else told)


def _to_whom(event: Event) -> str:
    """`` to 3f2a91d0``, of a reservation that was lost and others got one at that moment."""
    instead = event.data.get("instead") or ()
    return f" to {', '.join(plain(id_[:SHORT]) for id_ in instead)}" if instead else ""


def _refused(record: RequestRecord, now: float) -> tuple[list[RenderableType], dict[str, Any]]:
    at = record.finished_at or record.submitted_at
    parts: list[RenderableType] = [
        f"It was refused at {clock(at, now)}: {record.refusal_code}.",
        whole_sentence(record.refusal_message or ""),
        "",
        "Change the job's or the run's tags and launch it again; `gpufair policy show` says what the "
        "policy allows.",
    ]
    refusal = {
        "code": record.refusal_code,
        "message": record.refusal_message,
        "at": iso(record.finished_at),
    }
    return parts, {"refusal": refusal}


def _cancelled(
    record: RequestRecord, happened: Sequence[Event], now: float
) -> tuple[list[RenderableType], dict[str, Any]]:
    at = record.finished_at or record.submitted_at
    why = next((str(one.data.get("why")) for one in happened if one.kind == "cancelled"), None)
    how = f": the run is {plain(why)}" if why else ""
    parts: list[RenderableType] = [
        f"It was cancelled at {clock(at, now)}, after waiting {age_in_words(at - record.submitted_at)}{how}.",
        "",
        "Launch it again from its page in Dagster's UI if it is still wanted.",
    ]
    return parts, {"cancelled": {"at": iso(record.finished_at), "why": why}}


def _not_in_the_ledger(run: DagsterRun | None, asked_for: str) -> Story:
    if run is None:
        raise click.ClickException(
            f"No run of this Dagster instance has an id that begins with {plain(asked_for)}. "
            "`gpufair queue` shows those that wait."
        )
    status = run.status.value.lower()
    data = {"run": run.run_id, "job": run.job_name, "asks_for_gpus": asks_for_gpus(run.tags)}
    title = headline(f"{plain(run.run_id, 250)} · {plain(run.job_name)}")
    if not asks_for_gpus(run.tags):
        says = (
            "It asks for no GPU: Dagster starts it by its own rules, and this queue does not hold it "
            f"back. Its status is {status}.",
            "",
            "A job asks for GPUs with the tag gpufair/gpus: `gpu_tags(...)` builds it.",
        )
        return Story([title, *says], {**data, "state": "no_gpus"})
    says = (
        f"It asks for GPUs, but it is not in the GPU ledger. Its status is {status}.",
        "",
        "If it is queued, the daemon records it on its next pass. Otherwise it was started outside this "
        "queue.",
    )
    return Story([title, *says], {**data, "state": "unrecorded"})


def _facts(record: RequestRecord) -> dict[str, Any]:
    return {
        "run": record.run_id,
        "job": record.job_name,
        "location": record.location,
        "team": record.team or None,
        "project": record.project,
        "tier": record.tier or None,
        "kind": record.kind,
        "source": record.source,
        "launched_by": launched_by(record).as_json(),
        "asks_for_gpus": True,
        "pools": list(record.pools),
        "gpus": gpus(record.gpus or None),
        "min_gpus": gpus(record.min_gpus),
        "gpus_per_node": gpus(record.gpus_per_node),
        "max_duration_seconds": record.max_duration,
        "submitted": iso(record.submitted_at),
        "state": record.state,
    }


def _events_json(happened: Sequence[Event]) -> list[dict[str, Any]]:
    return [event_json(one) for one in happened]
