"""What a policy would stop on the instance if it were in force and carried out in full."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import click

from dagster_gpufair.cli.instance.opening import coordinator_of, opened
from dagster_gpufair.cli.moment.current import short_ids
from dagster_gpufair.engine.as_off import would_stop
from dagster_gpufair.ledger.connect import ledger_of
from dagster_gpufair.ledger.errors import LedgerError
from dagster_gpufair.ledger.state import state_of
from dagster_gpufair.policy.models import Policy
from dagster_gpufair.scheduling.model import Preemption


class StopsNow(NamedTuple):
    """What would be stopped, and the names of all that runs or waits there."""

    all: Sequence[Preemption]
    names: Mapping[str, str]


def stops_now(read: Policy, home: Path | None) -> StopsNow | None:
    """None where there is no instance with a GPU ledger to ask."""
    now = time.time()
    try:
        with opened(home) as instance:
            if coordinator_of(instance) is None:
                return None
            with ledger_of(instance).reading() as session:
                state = state_of(session, read, now)
    except (click.ClickException, LedgerError):
        # The file is what was asked about; only an instance that is named has to be there.
        if home is not None:
            raise
        return None
    ids = [*(request.id for request in state.requests), *(lease.id for lease in state.leases)]
    return StopsNow(would_stop(read, state, now), short_ids(ids))
