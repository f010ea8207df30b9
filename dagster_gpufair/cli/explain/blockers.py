"""What keeps a request waiting, as far as its reason names it: requests, leases or an account."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import RenderableType

from dagster_gpufair.cli.moment.current import Moment, Waiter
from dagster_gpufair.cli.moment.request_words import account, asked, of_json
from dagster_gpufair.cli.moment.reservations import reservation_json, reserved
from dagster_gpufair.cli.output.json_output import gpus, iso
from dagster_gpufair.cli.output.tables import Column, table
from dagster_gpufair.cli.output.text import plain
from dagster_gpufair.cli.output.times import age
from dagster_gpufair.scheduling.model import Account, Lease, Request, Reservation

_COLUMNS = (
    Column("  run"),
    Column("team"),
    Column("tier", drop=1),
    Column("asks", right=True),
    Column("since", right=True),
    Column("reserved", wraps=True),
)


def requests_in_the_way(moment: Moment, waiter: Waiter) -> Sequence[Request]:
    """The requests that GPUs are reserved for which this one could use."""
    waiting = moment.still_waiting
    return [waiting[id_] for id_ in waiter.blockers if id_ in waiting]


def in_the_way(moment: Moment, waiter: Waiter) -> Iterator[RenderableType]:
    """Those requests, in parts to print. Other blockers stand in the sentence of the reason."""
    found = requests_in_the_way(moment, waiter)
    if found:
        yield "Reserved for other runs:"
        yield table(_COLUMNS, [_row(moment, waiter, request) for request in found])


def blockers_json(moment: Moment, waiter: Waiter) -> list[dict[str, Any]]:
    """All that keep it waiting, for programs."""
    requests = {request.id: request for request in requests_in_the_way(moment, waiter)}
    leases = {lease.id: lease for lease in moment.settled.leases}
    found = []
    for name in waiter.blockers:
        if name in requests:
            found.append(_request_json(moment, waiter, requests[name]))
        elif name in leases:
            found.append(_lease_json(moment, leases[name]))
        else:
            found.append(_account_json(moment, waiter, name))
    return found


def _row(moment: Moment, waiter: Waiter, request: Request) -> Sequence[str]:
    its = _reservation_of(moment, waiter, request)
    return (
        f"  {moment.names[request.id]}",
        account(request),
        plain(request.tier),
        asked(request),
        age(moment.now - request.submitted),
        "promised" if its is None else reserved(its, moment.now),
    )


def _reservation_of(moment: Moment, waiter: Waiter, request: Request) -> Reservation | None:
    here = moment.reservations_in(waiter.pool)
    return next((one for one in here if one.request.id == request.id), None)


def _request_json(moment: Moment, waiter: Waiter, request: Request) -> dict[str, Any]:
    its = _reservation_of(moment, waiter, request)
    return {
        "what": "request",
        **of_json(request, moment.runs),
        "submitted": iso(request.submitted),
        "reservation": None if its is None else reservation_json(its, moment.runs),
    }


def _lease_json(moment: Moment, lease: Lease) -> dict[str, Any]:
    return {
        "what": "lease",
        **of_json(lease, moment.runs),
        "since": iso(lease.started),
        "until": iso(lease.ends),
    }


def _account_json(moment: Moment, waiter: Waiter, name: str) -> dict[str, Any]:
    team, _, project = name.partition("/")
    account_ = Account(team, project or None)
    holding = moment.settled_snapshot.accounts.account(account_, waiter.pool)
    return {
        "what": "account",
        "team": account_.team,
        "project": account_.project,
        "quota": gpus(holding.quota),
        "in_use": gpus(holding.use),
        "borrowed": gpus(holding.overage),
    }
