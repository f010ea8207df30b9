"""What a policy would mean on the instance: whom it would stop, and whom it would leave behind."""

from __future__ import annotations

import time
from pathlib import Path

import click
from sqlalchemy.orm import Session

from dagster_gpufair.cli.instance.opening import opened_ledger
from dagster_gpufair.cli.moment.current import short_ids
from dagster_gpufair.cli.policy.what_changes import OnInstance
from dagster_gpufair.ledger import leases, locations, policies, requests
from dagster_gpufair.ledger.errors import LedgerError
from dagster_gpufair.ledger.state import state_of
from dagster_gpufair.policy.left_behind import LeftBehind, Work, left_behind
from dagster_gpufair.policy.loading import parse_policy
from dagster_gpufair.policy.models import Policy
from dagster_gpufair.policy.problems import PolicyError
from dagster_gpufair.scheduling.plan import plan


def on_instance(read: Policy, home: Path | None) -> OnInstance:
    """Nothing, where there is no instance with a GPU ledger to ask."""
    now = time.time()
    try:
        with opened_ledger(home) as opened:
            if opened.policy_file is None:
                return OnInstance()
            with opened.ledger.reading() as session:
                state = state_of(session, read, now)
                left = _runs_left_behind(session, read)
                seen = locations.seen(session)
    except (click.ClickException, LedgerError):
        # The file is what was asked about; only an instance that is named has to be there.
        if home is not None:
            raise
        return OnInstance()
    ids = [*(request.id for request in state.requests), *(lease.id for lease in state.leases)]
    stops = plan(read, state, now).preemptions if read.stops_work else None
    return OnInstance(stops, left, seen, short_ids(ids))


def _runs_left_behind(session: Session, new: Policy) -> list[LeftBehind]:
    """The runs in the ledger that go by names which the policy in force has, and this one has not."""
    version = policies.in_force(session)
    if version is None:
        return []
    try:
        old = parse_policy(version.document)
    except PolicyError:
        return []
    holding = [
        Work(lease.request_id, lease.team, lease.tier, (lease.pool,), tuple(lease.nodes))
        for lease in leases.open_leases(session)
    ]
    waiting = [
        Work(request.id, request.team, request.tier, request.pools)
        for request in requests.waiting(session)
    ]
    return left_behind(old, new, holding, waiting)
