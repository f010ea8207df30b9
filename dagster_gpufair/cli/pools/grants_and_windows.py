"""Grants and windows that hold now, and windows that come next, as people and programs read them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dagster_gpufair.cli.output.json_output import gpus, iso
from dagster_gpufair.cli.output.text import plain, sentence
from dagster_gpufair.policy.in_force import length, starts
from dagster_gpufair.policy.models import Policy
from dagster_gpufair.policy.quantities import format_gpus, format_moment
from dagster_gpufair.scheduling.model import Account


@dataclass(frozen=True)
class MoreQuota:
    """More quota for an account from one moment to another; ``why`` is of a grant."""

    kind: str
    account: Account
    pool: str
    gpus: int
    start: float
    until: float
    approved_by: str | None = None
    why: str | None = None

    def words(self, now: float) -> str:
        """``window of 8 t4 for speech from 2026-06-01 20:00 UTC until 2026-06-02 04:00 UTC``."""
        what = f"{self.kind} of {format_gpus(self.gpus)} {plain(self.pool)}"
        begins = f" from {format_moment(self.start)}" if self.start > now else ""
        because = (
            f" (approved by {plain(self.approved_by)}: {sentence(self.why or '')})"
            if self.approved_by is not None
            else ""
        )
        until = format_moment(self.until)
        return f"{what} for {plain(str(self.account))}{begins} until {until}{because}"

    def as_json(self, now: float) -> dict[str, Any]:
        """Under the keys of the policy file."""
        return {
            "kind": self.kind,
            "team": self.account.team,
            "project": self.account.project,
            "pool": self.pool,
            "gpus": gpus(self.gpus),
            "from": iso(self.start),
            "until": iso(self.until),
            "in_force": self.start <= now,
            "approved_by": self.approved_by,
            "reason": self.why,
        }


def grants_and_windows(policy: Policy, now: float) -> Sequence[MoreQuota]:
    """The grants in force, and of each window the time it lasts now and its next one; earliest first."""
    found = [*_grants(policy, now), *_windows(policy, now)]
    return sorted(found, key=lambda each: (each.start > now, each.start, each.pool))


def _grants(policy: Policy, now: float) -> Iterator[MoreQuota]:
    for grant in policy.grants:
        start, until = grant.start.timestamp(), grant.until.timestamp()
        if start <= now < until:
            account = Account(grant.team, grant.project)
            yield MoreQuota(
                "grant",
                account,
                grant.pool,
                grant.gpus,
                start,
                until,
                grant.approved_by,
                grant.reason,
            )


def _windows(policy: Policy, now: float) -> Iterator[MoreQuota]:
    for window in policy.windows:
        for start in starts(window, now):
            until = start + length(window)
            if math.isfinite(start) and until > now:
                account = Account(window.team)
                yield MoreQuota("window", account, window.pool, window.gpus, start, until)
