"""Which run a person means who gives an id, or the beginning of one as Dagster's UI shows it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click
from sqlalchemy.orm import Session

from dagster_gpufair.cli.moment.request_words import account
from dagster_gpufair.cli.output.text import plain
from dagster_gpufair.cli.output.times import clock
from dagster_gpufair.ledger import requests
from dagster_gpufair.ledger.requests import RequestRecord

if TYPE_CHECKING:
    from dagster import DagsterInstance, DagsterRun

    from dagster_gpufair.cli.instance.opening import OpenLedger

Command = TypeVar("Command", bound=Callable[..., Any])

_CANDIDATES = 10
_NEWEST_RUNS = 5000
"""Dagster cannot look for the beginning of an id: so many of its newest runs are looked at."""


def _not_empty(_context: click.Context, _parameter: click.Parameter, value: str) -> str:
    if not value.strip():
        raise click.BadParameter("is empty", param_hint="RUN_ID")
    return value.strip()


run_argument: Callable[[Command], Command] = click.argument("run_id", callback=_not_empty)


def find_request(session: Session, beginning: str, now: float) -> RequestRecord | None:
    """The one request whose run id is this, or begins so; None if none does.

    Raises:
        click.ClickException: if several do.
    """
    exact = requests.by_ids(session, [beginning]) or requests.by_runs(session, [beginning])
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


def no_such_run(opened: OpenLedger, beginning: str) -> click.ClickException:
    """Why the ledger has no such run: Dagster has none either, or it is not in this queue."""
    run = find_run(opened.instance, beginning)
    if run is None:
        return click.ClickException(
            f"No run of this Dagster instance has an id that begins with {plain(beginning)}. "
            "`gpufair queue` shows those that wait."
        )
    return click.ClickException(
        f"Run {plain(run.run_id, 250)} is not in the GPU ledger. `gpufair explain "
        f"{plain(run.run_id, 250)}` says why."
    )


def _ambiguous(beginning: str, lines: list[str]) -> click.ClickException:
    begins = f"The ids of several runs begin with {plain(beginning)}; give more of it:"
    return click.ClickException("\n".join([begins, *lines]))
