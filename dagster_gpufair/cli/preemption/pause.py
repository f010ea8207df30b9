"""``gpufair pause`` and ``resume``: preemption or borrowing switched off for a time, by a person."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, get_args

import click

from dagster_gpufair.cli.instance.opening import opened_ledger
from dagster_gpufair.cli.instance.option import instance_option
from dagster_gpufair.cli.instance.person import person
from dagster_gpufair.cli.moment.warnings import pause_words
from dagster_gpufair.cli.output.json_output import iso, json_option, show_json
from dagster_gpufair.cli.output.tables import show
from dagster_gpufair.ledger import pauses
from dagster_gpufair.policy.models import Pausable

_WHAT = click.argument("what", type=click.Choice(get_args(Pausable)))
_REASON = click.option("--reason", default="", metavar="TEXT", help="Why, for all who ask.")
_MEANS = {
    "preemption": "No run is stopped for another from the daemon's next pass on, and notices are taken back.",
    "borrowing": "No run starts on borrowed GPUs from the daemon's next pass on; what runs goes on.",
}


@click.command()
@_WHAT
@_REASON
@instance_option
@json_option
def pause(what: Pausable, reason: str, home: Path | None, as_json: bool) -> None:
    """Switch preemption or borrowing off for a time, whatever the policy says."""
    with opened_ledger(home) as opened:
        now = time.time()
        with opened.ledger.writing() as session:
            is_new = pauses.pause(session, what, person(), reason.strip(), now)
            there = pauses.current(session)[what]
    if as_json:
        show_json({"what": what, "new": is_new, **_json(there)})
    elif is_new:
        show(f"{what.capitalize()} is paused. {_MEANS[what]}", _how_to_resume(what))
    else:
        show(f"{pause_words(what, there, now)}; nothing changed.", _how_to_resume(what))


@click.command()
@_WHAT
@_REASON
@instance_option
@json_option
def resume(what: Pausable, reason: str, home: Path | None, as_json: bool) -> None:
    """Switch preemption or borrowing on again, as the policy has it."""
    with opened_ledger(home) as opened, opened.ledger.writing() as session:
        was_paused = pauses.resume(session, what, person(), reason.strip(), time.time())
    if as_json:
        show_json({"what": what, "new": was_paused})
    elif was_paused:
        show(f"{what.capitalize()} goes on, as the policy has it, from the daemon's next pass on.")
    else:
        show(f"{what.capitalize()} is not paused; nothing changed.")


def _how_to_resume(what: str) -> str:
    return f"`gpufair resume {what}` switches it on again."


def _json(pause: Any) -> dict[str, Any]:
    return {"by": pause["by"], "reason": pause["reason"], "since": iso(float(pause["at"]))}
