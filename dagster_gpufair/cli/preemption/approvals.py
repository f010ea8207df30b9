"""``gpufair approvals``, ``approve`` and ``reject``: the stops that await a person."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import click
from sqlalchemy.orm import Session

from dagster_gpufair.cli.explain.find_run import find_request, no_such_run, run_argument
from dagster_gpufair.cli.instance.opening import opened_ledger
from dagster_gpufair.cli.instance.option import instance_option
from dagster_gpufair.cli.instance.person import person
from dagster_gpufair.cli.moment.current import short_ids
from dagster_gpufair.cli.moment.request_words import account
from dagster_gpufair.cli.output.json_output import gpus, iso, json_option, show_json
from dagster_gpufair.cli.output.tables import headline, show, under
from dagster_gpufair.cli.output.text import counted, plain
from dagster_gpufair.cli.output.times import age_in_words, clock
from dagster_gpufair.ledger import approvals as in_ledger
from dagster_gpufair.ledger import leases, requests
from dagster_gpufair.ledger.approvals import Approval
from dagster_gpufair.ledger.leases import LeaseRecord
from dagster_gpufair.ledger.requests import RequestRecord
from dagster_gpufair.policy.quantities import format_gpus

_DECIDED_SHOWN = 5


class _Open:
    """What awaits a person, with the runs that it names."""

    def __init__(self, session: Session):
        self.approvals = list(in_ledger.in_state(session, "proposed").values())
        self.asking = requests.by_ids(session, [each.request_id for each in self.approvals])
        held = {lease.id: lease for lease in leases.open_leases(session)}
        self.victims: Mapping[int, Sequence[tuple[LeaseRecord, str]]] = {
            each.id: [
                (held[victim["lease"]], victim["rule"])
                for victim in each.data["victims"]
                if victim["lease"] in held
            ]
            for each in self.approvals
        }
        self.names = short_ids(
            [
                *(request.run_id for request in self.asking.values()),
                *(lease.run_id for victims in self.victims.values() for lease, _ in victims),
            ]
        )


@click.command()
@instance_option
@json_option
def approvals(home: Path | None, as_json: bool) -> None:
    """The stops that await a person, and what was decided last."""
    now = time.time()
    with opened_ledger(home) as opened, opened.ledger.reading() as session:
        found = _Open(session)
        newest = in_ledger.newest(session, 50)
    decided = [each for each in newest if each.state in ("approved", "rejected", "done")]
    if as_json:
        show_json(
            {
                "open": [_json(found, each) for each in found.approvals],
                "decided": [_decided_json(each) for each in decided],
            }
        )
        return
    if not found.approvals:
        show("Nothing awaits approval.")
    for each in found.approvals:
        asking = found.asking[each.request_id]
        name = found.names[asking.run_id]
        show(
            headline(
                f"{name} ({account(asking)}, {plain(asking.tier)}) asks for {_amount(each)}, and waits for "
                f"approval for {age_in_words(now - each.proposed_at)}"
            ),
            *(
                under(f"would stop {found.names[lease.run_id]} ({_of(lease, now)}): {rule}")
                for lease, rule in found.victims[each.id]
            ),
            under(f"`gpufair approve {name}`, or `gpufair reject {name} --reason TEXT`"),
            "",
        )
    for each in decided[:_DECIDED_SHOWN]:
        show(_decided(each, now))


@click.command()
@run_argument
@click.option("--reason", default="", metavar="TEXT", help="Why, for all who ask.")
@instance_option
@json_option
def approve(run_id: str, reason: str, home: Path | None, as_json: bool) -> None:
    """Agree that runs are stopped for RUN_ID, as `gpufair approvals` shows.

    They are given notice by the daemon's next pass, if it still wants just that.
    """
    _decide(run_id, "approved", reason, home, as_json)


@click.command()
@run_argument
@click.option("--reason", required=True, metavar="TEXT", help="Why, for all who ask.")
@instance_option
@json_option
def reject(run_id: str, reason: str, home: Path | None, as_json: bool) -> None:
    """Say no: nobody is stopped for RUN_ID as long as it waits."""
    _decide(run_id, "rejected", reason, home, as_json)


def _decide(
    run_id: str,
    as_: Literal["approved", "rejected"],
    reason: str,
    home: Path | None,
    as_json: bool,
) -> None:
    now = time.time()
    with opened_ledger(home) as opened:
        with opened.ledger.reading() as session:
            asking = find_request(session, run_id, now)
        if asking is None:
            raise no_such_run(opened, run_id)
        with opened.ledger.writing() as session:
            decided = in_ledger.decide(session, asking, as_, person(), reason.strip(), now)
    if not decided:
        raise click.ClickException(
            f"Nothing awaits approval for run {plain(asking.run_id, 250)}. `gpufair approvals` shows what "
            "does."
        )
    if as_json:
        show_json({"run": asking.run_id, "as": as_})
    elif as_ == "approved":
        show(
            "Approved. The runs are given notice by the daemon's next pass, if it still wants just that.",
            f"`gpufair explain {plain(asking.run_id[:8])}` says how it goes on.",
        )
    else:
        show(f"Rejected. Nobody is stopped for {plain(asking.run_id[:8])} as long as it waits.")


def _amount(each: Approval) -> str:
    return f"{format_gpus(int(each.data['gpus']))} {plain(str(each.data['pool']))}"


def _of(lease: LeaseRecord, now: float) -> str:
    """``vision, standard, 4 GPUs, for 2 h, no checkpoint``."""
    amount = format_gpus(lease.gpus)
    gpus_ = "1 GPU" if amount == "1" else f"{amount} GPUs"
    saved = (
        "no checkpoint known"
        if lease.checkpointed_at is None
        else f"last checkpoint {age_in_words(now - lease.checkpointed_at)} ago"
    )
    held = age_in_words(now - lease.started_at)
    return f"{account(lease)}, {plain(lease.tier)}, {gpus_} for {held}, {saved}"


def _decided(each: Approval, now: float) -> str:
    when = clock(each.decided_at or each.proposed_at, now)
    how = "rejected" if each.state == "rejected" else "approved"
    why = f": {plain(each.reason)}" if each.reason else ""
    victims = counted(len(each.data["victims"]), "run")
    return (
        f"{how} at {when} by {plain(each.decided_by or 'somebody')}{why} "
        f"({victims} for {plain(each.request_id[:8])})"
    )


def _json(found: _Open, each: Approval) -> dict[str, Any]:
    asking: RequestRecord = found.asking[each.request_id]
    return {
        "run": asking.run_id,
        "team": asking.team,
        "project": asking.project,
        "tier": asking.tier,
        "pool": each.data["pool"],
        "gpus": gpus(int(each.data["gpus"])),
        "since": iso(each.proposed_at),
        "stops": [
            {
                "run": lease.run_id,
                "team": lease.team,
                "project": lease.project,
                "tier": lease.tier,
                "gpus": gpus(lease.gpus),
                "since": iso(lease.started_at),
                "checkpointed": iso(lease.checkpointed_at),
                "rule": rule,
            }
            for lease, rule in found.victims[each.id]
        ],
    }


def _decided_json(each: Approval) -> dict[str, Any]:
    return {
        "request": each.request_id,
        "as": "rejected" if each.state == "rejected" else "approved",
        "acted_on": each.state == "done",
        "by": each.decided_by,
        "reason": each.reason,
        "at": iso(each.decided_at),
        "stops": [victim["run"] for victim in each.data["victims"]],
    }
