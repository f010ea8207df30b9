"""What a policy would mean on the instance if it were in force, and carried out in full."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import click

from dagster_gpufair.cli.instance.opening import coordinator_of, opened
from dagster_gpufair.cli.moment.current import short_ids
from dagster_gpufair.cli.policy.what_changes import runs_left_behind
from dagster_gpufair.engine.as_off import not_carried_out, would_stop
from dagster_gpufair.ledger import locations
from dagster_gpufair.ledger.connect import ledger_of
from dagster_gpufair.ledger.errors import LedgerError
from dagster_gpufair.ledger.state import state_of
from dagster_gpufair.policy.left_behind import LeftBehind
from dagster_gpufair.policy.models import Policy
from dagster_gpufair.scheduling.model import Preemption


class OnInstance(NamedTuple):
    """What would be stopped (None where nothing ever is), and which runs would be left behind.

    ``locations`` are the code locations that runs have come from, ``names`` those of all that runs or waits.
    """

    stops: Sequence[Preemption] | None
    left: Sequence[LeftBehind]
    locations: Collection[str]
    names: Mapping[str, str]


def on_instance(read: Policy, home: Path | None) -> OnInstance | None:
    """None where there is no instance with a GPU ledger to ask."""
    now = time.time()
    try:
        with opened(home) as instance:
            if coordinator_of(instance) is None:
                return None
            with ledger_of(instance).reading() as session:
                state = state_of(session, read, now)
                left = runs_left_behind(session, read)
                seen = locations.seen(session)
    except (click.ClickException, LedgerError):
        # The file is what was asked about; only an instance that is named has to be there.
        if home is not None:
            raise
        return None
    ids = [*(request.id for request in state.requests), *(lease.id for lease in state.leases)]
    stops = would_stop(read, state, now) if not_carried_out(read) else None
    return OnInstance(stops, left, seen, short_ids(ids))
