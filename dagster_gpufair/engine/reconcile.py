"""What becomes of a lease, from what is to be seen of its holder: evidence, not what was last done.

A lease is never judged by what the daemon did: a launch whose call timed out may still happen, a stop that
was answered may have done nothing, and a run that is over by its status may have processes that go on. Its
GPUs are held until its holder is known to be gone.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from dagster_gpufair.engine.port import Sight
from dagster_gpufair.ledger.leases import LeaseRecord
from dagster_gpufair.policy.quantities import format_duration

LINGERS_AFTER = 10.0
"""Seconds that the processes of a run may take to end once it is over."""


class Verdict(NamedTuple):
    """What is to be done: a transition of `lifecycle`'s, or one of three more.

    ``launch``: nobody launches it, though it waits for that. ``give_up``: what should be there is not:
    its holder is to be over by its own record, and the lease ends when that is seen. ``never_came``: the
    same, unless it comes at this moment.
    """

    what: Literal[
        "launch", "recall", "begin", "linger", "release", "preempt", "give_up", "never_came"
    ]
    at: float
    why: str = ""


def judge(
    lease: LeaseRecord, sight: Sight, now: float, *, is_busy: bool, start_timeout: float
) -> Verdict | None:
    """What an open lease's state and its holder's make of it; None: nothing.

    Args:
        is_busy: whether this daemon is launching it at this moment.
        start_timeout: seconds after which a launch that is not settled counts as one that never comes.
    """
    if sight.doing == "over":
        at = now if sight.since is None else min(max(sight.since, lease.started_at), now)
        if not sight.alive:
            # What outlived its run held the GPUs until now.
            at = now if lease.state == "ending" else at
            return Verdict("preempt" if sight.goes_on else "release", at, sight.how)
        # A process ends a moment after its run; only then is it worth a word.
        if lease.state == "ending" or now - at < LINGERS_AFTER:
            return None
        return Verdict("linger", at, f"the run is over ({sight.how}), and its processes are there")
    if sight.doing == "queued":
        if is_busy:
            return None
        if lease.state == "granted":
            return Verdict("launch", now)
        if lease.state == "launching":
            return Verdict("recall", now, "Its launch broke off; it is tried again.")
        # Nobody launches what has begun, and its worker may be there: it has to be over first.
        return Verdict("give_up", now, "it was put back into the queue after its work had begun")
    if sight.alive is False:
        return Verdict("give_up", now, "its worker is gone: no process of it is left")
    if sight.doing == "running":
        if lease.state in ("granted", "launching"):
            at = now if sight.since is None else min(max(sight.since, lease.started_at), now)
            return Verdict("begin", at)
        return None
    return _of_starting(lease, sight, now, is_busy, start_timeout)


def _of_starting(
    lease: LeaseRecord, sight: Sight, now: float, is_busy: bool, start_timeout: float
) -> Verdict | None:
    if lease.state == "granted":
        # Marked as starting, and nobody has taken it on: what would have launched it broke off.
        return None if is_busy else Verdict("launch", now)
    if lease.state != "launching" or sight.alive:
        return None
    if now - (lease.launched_at or lease.claimed_at or lease.started_at) < start_timeout:
        return None
    its_launch = "did not return" if lease.launched_at is None else "was answered"
    within = format_duration(start_timeout)
    return Verdict(
        "never_came", now, f"its launch {its_launch}, and no worker has come within {within}"
    )
