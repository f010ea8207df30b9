"""Which runs ``gpufair queue`` is asked about: of a pool, of a team, of a person."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import click

from dagster_gpufair.cli.moment.current import Moment, Waiter
from dagster_gpufair.cli.moment.launched_by import launched_by
from dagster_gpufair.cli.output.text import sentence
from dagster_gpufair.cli.pools.pool_use import PoolUse, pool_uses
from dagster_gpufair.ledger.leases import LeaseRecord
from dagster_gpufair.ledger.requests import RequestRecord
from dagster_gpufair.policy.problems import unknown


@dataclass(frozen=True)
class Selection:
    """None where it does not matter; ``user`` is who launched it, or its backfill."""

    pool: str | None = None
    team: str | None = None
    user: str | None = None

    def pools(self, moment: Moment) -> Sequence[PoolUse]:
        """The pools to show.

        Raises:
            click.ClickException: if the pool or the team is not known.
        """
        uses = pool_uses(moment)
        names = [use.name for use in uses]
        if self.pool is not None and self.pool not in names:
            raise click.ClickException(sentence(f"{unknown('pool', self.pool, names)}."))
        teams = {
            *moment.policy.teams,
            *(request.team for request in moment.state.requests),
            *(lease.team for lease in moment.leases),
        }
        if self.team is not None and self.team not in teams:
            raise click.ClickException(sentence(f"{unknown('team', self.team, sorted(teams))}."))
        return [use for use in uses if self.pool in (None, use.name)]

    def waiting(self, moment: Moment, uses: Sequence[PoolUse]) -> Mapping[str, Sequence[Waiter]]:
        """By pool, what waits of the team; their places stay those of the whole line."""
        return {
            use.name: [
                waiter
                for waiter in moment.lines.get(use.name, ())
                if self.team in (None, waiter.request.team)
            ]
            for use in uses
        }

    def running(
        self, moment: Moment, uses: Sequence[PoolUse]
    ) -> Mapping[str, Sequence[LeaseRecord]]:
        """By pool, what holds GPUs of the team, the oldest first."""
        oldest_first = sorted(moment.leases, key=lambda lease: lease.started_at)
        return {
            use.name: [
                lease
                for lease in oldest_first
                if lease.pool == use.name and self.team in (None, lease.team)
            ]
            for use in uses
        }

    def includes(self, record: RequestRecord) -> bool:
        """Whether a run of the team is one of those that are asked about."""
        return self.user is None or launched_by(record).user == self.user
