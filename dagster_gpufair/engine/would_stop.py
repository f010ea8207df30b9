"""Which runs would be stopped for those that wait, were the policy carried out in full.

To ask costs more than a pass, and is for people only. So it is asked when something has changed, takes a
small part of the daemon's time at most, and is about the first in line where the line is long.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from dagster_gpufair.engine.as_off import as_off, would_stop
from dagster_gpufair.policy.models import Policy
from dagster_gpufair.policy.quantities import format_duration
from dagster_gpufair.scheduling.model import Plan, Preemption, Request, State
from dagster_gpufair.scheduling.waiting import words

SOON = 10.0
"""Seconds after which a change is looked at."""
LATE = 60.0
"""Seconds after which it is asked again although nothing has changed but the time."""
REST = 20
"""So many times as long as it took to ask, nothing is asked."""
LONG = 1.0
"""Seconds it may take to ask: about how many is adjusted to that."""
FEWEST, OF_A_KIND = 200, 10
"""So many of the first in line are asked about at least, and so many of those that are alike."""


class Remark(NamedTuple):
    """What would be stopped for a run: in a sentence, and short for a tag."""

    sentence: str
    short: str


class WouldStop:
    """What would be stopped for whom, as it was last asked."""

    def __init__(self) -> None:
        self._found: Mapping[str, Preemption] = {}
        self._seen: object = None
        self._asked_at = self._again_at = float("-inf")
        self._most = FEWEST

    def look(self, policy: Policy, state: State, plan: Plan, seen: object, now: float) -> None:
        """Ask again, if it is time to.

        Args:
            policy: the one in force, with all that is not carried out.
            state: the moment once all that ``plan`` starts has started.
            seen: differs when something has changed besides the time.
        """
        if not plan.waiting or as_off(policy) is policy:
            self._found, self._seen = {}, None
            return
        # A clock that was set back must not silence it.
        due = self._again_at if seen != self._seen else max(self._again_at, self._asked_at + LATE)
        if self._asked_at <= now < due:
            return
        began = time.perf_counter()
        asking = replace(state, requests=_first_in_line(plan, self._most))
        self._found = {each.request.id: each for each in would_stop(policy, asking, now)}
        took = time.perf_counter() - began
        self._seen, self._asked_at = seen, now
        self._again_at = now + max(SOON, REST * took)
        if took > LONG:
            self._most = max(FEWEST, self._most // 2)
        elif took < LONG / 4:
            self._most = min(self._most * 2, len(state.requests) + FEWEST)

    def remarks(self, policy: Policy, state: State) -> dict[str, Remark]:
        """What to say to those that wait, by request, of what still runs."""
        if not self._found:
            return {}
        running = {lease.id for lease in state.leases}
        return {
            id_: remark(policy, stop)
            for id_, stop in self._found.items()
            if all(victim.lease.id in running for victim in stop.victims)
        }


def remark(policy: Policy, stop: Preemption) -> Remark:
    """What would be stopped for a run, and by which rule."""
    leases = [victim.lease for victim in stop.victims]
    rules = ", ".join(dict.fromkeys(victim.rule for victim in stop.victims))
    if rules == "term":
        most = format_duration(policy.borrowing.max_duration or 0)
        what, short = (
            f"Borrowing for {most} at most is in the policy",
            f"borrowing for {most} at most",
        )
    else:
        mode = policy.preemption.mode
        what, short = f"Preemption is on in the policy ({mode})", f"preemption ({mode})"
    would = "would, once a person had agreed," if stop.awaits_approval else "would"
    first, others = words.leases(leases[:1]), len(leases) - 1
    more = f" and {others} more" if others else ""
    return Remark(
        sentence=f"{what} and not carried out in this version: it {would} stop {words.leases(leases)} "
        f"for this run ({rules}).",
        short=f"Not carried out in this version: {short} would stop {first}{more}.",
    )


def _first_in_line(plan: Plan, most: int) -> list[Request]:
    found: list[Request] = []
    for group in plan.waiting:
        if len(found) >= most:
            break
        found += group.requests[:OF_A_KIND]
    return found
