"""Which run a person means who gives an id, or the beginning of one as Dagster's UI shows it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from sqlalchemy.orm import Session

from dagster_gpufair.cli.moment.request_words import account
from dagster_gpufair.cli.output.tables import clock, plain
from dagster_gpufair.ledger import requests
from dagster_gpufair.ledger.requests import RequestRecord

if TYPE_CHECKING:
    from dagster import DagsterInstance, DagsterRun

_CANDIDATES = 10
_NEWEST_RUNS = 5000
"""Dagster cannot look for the beginning of an id: so many of its newest runs are looked at."""


def find_request(session: Session, beginning: str, now: float) -> RequestRecord | None:
    """The one request whose run id is this, or begins so; None if none does.

    Raises:
        click.ClickException: if several do.
    """
    exact = requests.by_ids(session, [beginning])
    found = list(exact.values()) or requests.find(session, beginning, _CANDIDATES + 1)
    if len(found) > 1:
        shown = found[:_CANDIDATES]
        lines = [
            f"  {plain(request.run_id, 250)}  {account(request)} {plain(request.tier)} "
            f"{plain(request.job_name)}, {request.state}, "
            f"submitted {clock(request.submitted_at, now)}"
            for request in shown
        ]
        if len(found) > len(shown):
            lines.append("  and more")
        raise _ambiguous(beginning, lines)
    return found[0] if found else None


def find_run(instance: DagsterInstance, beginning: str) -> DagsterRun | None:
    """The same among all runs of the instance, for one that the ledger does not know."""
    run = instance.get_run_by_id(beginning)
    if run is not None:
        return run
    ids = [id_ for id_ in instance.get_run_ids(limit=_NEWEST_RUNS) if id_.startswith(beginning)]
    if len(ids) > 1:
        raise _ambiguous(beginning, [f"  {plain(id_, 250)}" for id_ in ids[:_CANDIDATES]])
    return instance.get_run_by_id(ids[0]) if ids else None


def _ambiguous(beginning: str, lines: list[str]) -> click.ClickException:
    begins = f"The ids of several runs begin with {plain(beginning)}; give more of it:"
    return click.ClickException("\n".join([begins, *lines]))
