"""``gpufair history``: all that happened to a run, a sentence for each event."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path

import click
from sqlalchemy.orm import Session

from dagster_gpufair.cli.explain.find_run import find_request, no_such_run, run_argument
from dagster_gpufair.cli.explain.started_run import holds
from dagster_gpufair.cli.history.event_json import event_json
from dagster_gpufair.cli.history.event_sentences import sentence_of
from dagster_gpufair.cli.instance.opening import opened_ledger
from dagster_gpufair.cli.instance.option import instance_option
from dagster_gpufair.cli.moment.current import short_ids
from dagster_gpufair.cli.moment.launched_by import launched_by
from dagster_gpufair.cli.moment.request_words import title
from dagster_gpufair.cli.output.json_output import json_option, show_json
from dagster_gpufair.cli.output.tables import Column, headline, show, table
from dagster_gpufair.cli.output.times import moment
from dagster_gpufair.ledger import history as ledger_history
from dagster_gpufair.ledger import leases
from dagster_gpufair.ledger.events import Event
from dagster_gpufair.ledger.requests import RequestRecord

_NEXT = {
    "queued": "`gpufair explain {run}` says why it waits.",
    "granted": "`gpufair explain {run}` says why it started then.",
    "released": "`gpufair explain {run}` says why it started then.",
    "refused": "`gpufair policy show` says what the policy allows.",
}


@click.command()
@run_argument
@instance_option
@json_option
def history(run_id: str, home: Path | None, as_json: bool) -> None:
    """Everything that happened to a run, oldest first.

    The first characters of RUN_ID are enough, as Dagster's UI shows them.
    """
    now = time.time()
    with opened_ledger(home) as opened, opened.ledger.reading() as session:
        record = find_request(session, run_id, now)
        if record is None:
            raise no_such_run(opened, run_id)
        happened, names = _happened(session, record)
        held = [one for one in leases.of_requests(session, [record.id]) if one.released_at is None]
    if as_json:
        show_json(
            {
                "run": record.run_id,
                "job": record.job_name,
                "team": record.team or None,
                "state": record.state,
                "holds_gpus": bool(held),
                "lingering": any(lease.state == "ending" for lease in held),
                "launched_by": launched_by(record).as_json(),
                "events": [event_json(event, names) for event in happened],
            }
        )
        return
    columns = (Column("when"), Column("what happened", wraps=True))
    rows = [(moment(event.at), sentence_of(event, names)) for event in _told(happened)]
    next_ = _NEXT.get(record.state, "`gpufair queue` shows what waits.")
    show(
        headline(title(record)),
        table(columns, rows),
        "",
        *(holds(lease, now) for lease in held),
        next_.format(run=names.get(record.run_id, record.run_id)),
    )


def _told(happened: Sequence[Event]) -> Iterator[Event]:
    """Of checkpoints, one after the other, the last is enough."""
    for event, next_ in zip_longest(happened, happened[1:]):
        if event.kind != "saved" or next_ is None or next_.kind != "saved":
            yield event


def _happened(session: Session, record: RequestRecord) -> tuple[Sequence[Event], dict[str, str]]:
    """The events, and short ids of the runs that they name."""
    happened = ledger_history.of_request(session, record)
    named = {record.id, record.run_id}
    for event in happened:
        named.update(str(id_) for id_ in event.data.get("instead") or ())
    return happened, dict(short_ids(named))
