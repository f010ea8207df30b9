"""Reservations: GPUs that are reserved for requests that wait, in the words that people and programs read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dagster_gpufair.cli.moment.request_words import of_json, who
from dagster_gpufair.cli.output.json_output import gpus, iso
from dagster_gpufair.cli.output.text import plain
from dagster_gpufair.cli.output.times import clock
from dagster_gpufair.policy.quantities import format_gpus
from dagster_gpufair.scheduling.model import Account, Reservation


def reserved(reservation: Reservation, now: float) -> str:
    """``8 h100 on h1 from 13:35 CET at the latest``."""
    pool, request = plain(reservation.pool), reservation.request
    amount = f"{format_gpus(reservation.gpus)} {pool}"
    at = reservation.at
    if reservation.of_quota:
        whose = plain(str(Account(request.team, request.project)))
        until = "" if at is None else f", until {clock(at, now)} at the latest"
        return f"{amount} of the quota of {whose}{until}"
    nodes = ", ".join(plain(node) for node in sorted(reservation.nodes))
    where = f" on {nodes}" if nodes else ""
    if at is None:
        return f"{amount}{where}, as soon as they are free (when is not known)"
    return f"{amount}{where} from {clock(at, now)} at the latest"


def reserved_for(reservation: Reservation, names: Mapping[str, str], now: float) -> str:
    """``for 3f2a91c0 (nlp/pretrain, milestone, 8 GPUs): 8 h100 on h1 from 13:35 CET at the latest``."""
    request = reservation.request
    return f"for {names[request.id]} ({who(request)}): {reserved(reservation, now)}"


def reservation_json(
    reservation: Reservation, runs: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """The same, for programs."""
    return {
        **of_json(reservation.request, runs),
        "pool": reservation.pool,
        "gpus": gpus(reservation.gpus),
        "nodes": {node: gpus(part) for node, part in sorted(reservation.nodes.items())},
        "from": iso(reservation.at),
        "class": reservation.class_.label,
        "of_quota": reservation.of_quota,
    }
