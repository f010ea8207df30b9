"""Running work is not stopped in this version: what a policy says of it is told, and not carried out."""

from __future__ import annotations

from collections.abc import Sequence

from dagster_gpufair.policy.models import Policy
from dagster_gpufair.policy.quantities import format_duration
from dagster_gpufair.scheduling.model import Preemption, State
from dagster_gpufair.scheduling.plan import plan


def as_off(policy: Policy) -> Policy:
    """The policy as it is carried out: nothing that runs is stopped for other work.

    The same object, if that is all it says.
    """
    if not not_carried_out(policy):
        return policy
    return policy.model_copy(
        update={
            "preemption": policy.preemption.model_copy(update={"mode": "off"}),
            "borrowing": policy.borrowing.model_copy(update={"max_duration": None}),
        }
    )


def not_carried_out(policy: Policy) -> list[str]:
    """What the policy sets that would stop running work, key by key."""
    said = []
    if policy.preemption.mode != "off":
        said.append(f"preemption.mode: {policy.preemption.mode}")
    if policy.borrowing.max_duration is not None:
        said.append(f"borrowing.max_duration: {format_duration(policy.borrowing.max_duration)}")
    return said


def would_stop(policy: Policy, state: State, now: float) -> Sequence[Preemption]:
    """Which runs would be given notice now for which request, were the policy carried out in full."""
    return () if as_off(policy) is policy else plan(policy, state, now).preemptions
