"""What a run's page says: its tags, and a sentence in its event log at each change."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import NamedTuple

from dagster import DagsterInstance

from dagster_gpufair.gate.submission.tags import MAX_DURATION, state_tags
from dagster_gpufair.gate.tag_writes import write_tags
from dagster_gpufair.ledger.leases import LeaseRecord
from dagster_gpufair.ledger.requests import RequestRecord
from dagster_gpufair.policy.models import Policy
from dagster_gpufair.policy.quantities import ONE_GPU, format_duration, format_gpus
from dagster_gpufair.scheduling.accounts.accounts import account_of
from dagster_gpufair.scheduling.model import Class, Start


class Cause(NamedTuple):
    """Why a run waits from a moment on, as the ledger records it."""

    reason: str
    why: str
    at: float


@dataclass(frozen=True)
class Word:
    """One thing to say on a run's page; without a sentence only the tags change.

    ``why`` is for a tag too: while a run is queued, Dagster's page of it hides the event log. The cause
    comes first in it, since a list shows only its beginning. ``cause`` is there where the reason to wait
    is another than before.
    """

    run_id: str
    state: str
    reason: str
    tag: str
    why: str
    sentence: str | None = None
    cause: Cause | None = None


def short(run_id: str) -> str:
    """A run id as people see it in Dagster's UI."""
    return run_id[:8]


def ordinal(place: int) -> str:
    """1 → 1st, 12 → 12th."""
    suffix = (
        "th" if place % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(place % 10, "th")
    )
    return f"{place}{suffix}"


def clock(at: float) -> str:
    """A time of day with the server's zone, and with the day where it is not today."""
    when = time.localtime(at)
    today = time.localtime()[:3] == when[:3]
    return time.strftime("%H:%M %Z", when) if today else day_and_clock(at)


def day_and_clock(at: float) -> str:
    """The same always with the day: for what may be read on another one."""
    return time.strftime("%Y-%m-%d %H:%M %Z", time.localtime(at))


def granted_word(lease: LeaseRecord, start: Start, policy: Policy, now: float) -> Word:
    """What the page of a run says that has just got its GPUs."""
    request = start.request
    account = account_of(policy, request, start.pool)
    where = f" on {', '.join(sorted(start.nodes))}" if start.nodes else ""
    fewer = f" (of {format_gpus(request.gpus)} asked)" if start.gpus < request.gpus else ""
    why = {
        Class.URGENT: f"because tier '{request.tier}' is urgent",
        Class.GUARANTEED: f"within the quota of {account}",
        Class.SHARED: f"within the quota of {request.team} as a whole",
        Class.BORROWING: f"borrowed: it is beyond the quota of {account} and nobody else uses it",
    }[start.class_]
    got = f"{format_gpus(start.gpus)} × {start.pool}"
    points, waited = f"{start.points.score:,.0f}", format_duration(now - request.submitted)
    return Word(
        run_id=lease.run_id,
        state="granted",
        reason=start.class_.label,
        tag=f"{start.class_.label} · {got}",
        why=why,
        sentence=f"Granted {got}{where}{fewer}, {why}, with {points} points after waiting {waited}.",
    )


def again_word(lease: LeaseRecord) -> Word:
    """What the page of a run says whose launch broke off, and is begun again."""
    label = lease.class_.label if lease.class_ is not None else "ungated"
    held = f"{format_gpus(lease.gpus)} × {lease.pool}"
    return Word(
        run_id=lease.run_id,
        state="granted",
        reason=label,
        tag=f"{label} · {held}",
        why="its launch broke off and was begun again",
        sentence=f"Launched now: it was granted {held} before, and its launch broke off.",
    )


def bound_near_word(lease: LeaseRecord) -> Word:
    """What the page of a run says that nears its ``gpufair/max_duration``."""
    end = lease.bound_ends
    assert lease.max_duration is not None and end is not None
    return Word(
        run_id=lease.run_id,
        state="granted",
        reason="ends",
        tag=f"ends at {clock(end)}",
        why=f"its {MAX_DURATION} is {format_duration(lease.max_duration)}",
        sentence=f"This run is stopped at {clock(end)}: its {MAX_DURATION} is "
        f"{format_duration(lease.max_duration)}. Save what it has.",
    )


def bound_over_word(lease: LeaseRecord) -> Word:
    """What the page of a run says that has used up its ``gpufair/max_duration``."""
    assert lease.max_duration is not None
    return Word(
        run_id=lease.run_id,
        state="granted",
        reason="over",
        tag="stopped at its max_duration",
        why=f"its {MAX_DURATION} is {format_duration(lease.max_duration)}",
        sentence=f"Stopped: it has run for the {format_duration(lease.max_duration)} of its tag "
        f"{MAX_DURATION}. Launch it again with a longer one if it needs more.",
    )


def notice_word(lease: LeaseRecord, asker: RequestRecord | None) -> Word:
    """What the page of a run says that is stopped soon, for another."""
    until = clock(lease.notice_until or 0.0)
    return Word(
        run_id=lease.run_id,
        state="granted",
        reason="notice",
        tag=f"stopped at {until}",
        why=f"{for_whom(lease, asker)}. Save what it has: it goes on from there later",
        sentence=f"This run is stopped at {until}: {for_whom(lease, asker)}. Save a checkpoint by then. It "
        "goes on by itself later, in a new run from the step that is stopped.",
    )


def spared_word(lease: LeaseRecord) -> Word:
    """What the page of a run says that goes on after all."""
    held = f"{format_gpus(lease.gpus)} × {lease.pool}"
    return Word(
        run_id=lease.run_id,
        state="granted",
        reason="spared",
        tag=f"goes on · {held}",
        why="its notice was taken back: its GPUs are not needed any more",
        sentence="This run goes on: its notice was taken back, since its GPUs are not needed any more.",
    )


def stopping_word(lease: LeaseRecord, asker: RequestRecord | None) -> Word:
    """What the page of a run says whose notice is over."""
    return Word(
        run_id=lease.run_id,
        state="granted",
        reason="stopping",
        tag="being stopped",
        why=for_whom(lease, asker),
        sentence=f"This run is being stopped now: {for_whom(lease, asker)}. Its notice is over.",
    )


def preempted_word(
    lease: LeaseRecord, again: RequestRecord, asker: RequestRecord | None, at: float
) -> Word:
    """What the last word on the page of a run is that was stopped for another and goes on in a new run."""
    since = lease.to_lease().since_saved
    lost = max(0.0, at - since) * lease.gpus / ONE_GPU / 3600
    saved = (
        f"its last checkpoint was at {clock(since)}"
        if lease.checkpointed_at is not None
        else "it saved no checkpoint that is known of"
    )
    return Word(
        run_id=lease.run_id,
        state="preempted",
        reason="preempted",
        tag=f"stopped · rule {lease.notice_rule}",
        why=f"{for_whom(lease, asker)}; a new run goes on from the step that was stopped",
        sentence=f"Stopped: {for_whom(lease, asker)}. {_lost(lost)}: "
        f"{saved}. The work waits again, with more points for having been stopped {times(again.preempted)}, "
        f"and goes on in a new run from the step that was stopped.{_loses_less(lease)}",
    )


def _lost(gpu_hours: float) -> str:
    said = f"{gpu_hours:.2g}"
    return f"{said} GPU-{'hour of work is' if said == '1' else 'hours of work are'} lost"


def _loses_less(lease: LeaseRecord) -> str:
    if lease.checkpointed_at is not None:
        return ""
    return (
        " Code that calls `dagster_gpufair.preemption.checkpointed()` when it has saved loses less."
    )


def times(count: int) -> str:
    """``once``, ``twice``, ``3 times``."""
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


def for_whom(lease: LeaseRecord, asker: RequestRecord | None) -> str:
    """``3f2a91d0 (nlp/pretrain, milestone) takes back GPUs that are guaranteed to it (rule reclaim)``."""
    rule = {
        "reclaim": "takes back GPUs that are guaranteed to it",
        "priority": "has a higher tier in the same account",
        "urgent": "is urgent",
        "rebalance": "has borrowed less",
        "term": "waits for GPUs whose borrowing time is over",
    }.get(lease.notice_rule or "", "needs its GPUs")
    if asker is None:
        return f"another run {rule} (rule {lease.notice_rule})"
    whose = asker.team if asker.project is None else f"{asker.team}/{asker.project}"
    return f"{short(asker.run_id)} ({whose}, {asker.tier}) {rule} (rule {lease.notice_rule})"


def released_word(lease: LeaseRecord, ended_as: str, at: float, cause: str | None = None) -> Word:
    """What the page of a run says whose GPUs are free again since ``at``.

    ``cause`` is why it never came to run, where that is so.
    """
    held = format_duration(max(0.0, at - lease.started_at))
    return Word(
        run_id=lease.run_id,
        state="released",
        reason=ended_as,
        tag="did not start" if cause else f"{format_gpus(lease.gpus)} × {lease.pool} for {held}",
        why=cause or f"the run ended: {ended_as}",
    )


def lingering_word(lease: LeaseRecord) -> Word:
    """What the page of a run says that is over, and whose processes are not."""
    held = f"{format_gpus(lease.gpus)} × {lease.pool}"
    return Word(
        run_id=lease.run_id,
        state="granted",
        reason="lingering",
        tag=f"over, and its processes hold {held}",
        why="processes of this run are still there: its GPUs are free once they have ended",
        sentence=f"This run is over, and processes of it go on. It keeps {held} until they have ended.",
    )


def unsettled_word(lease: LeaseRecord, detail: str, until: float) -> Word:
    """What the page of a run says whose launch may or may not have happened."""
    held = f"{format_gpus(lease.gpus)} × {lease.pool}"
    return Word(
        run_id=lease.run_id,
        state="granted",
        reason="unsettled",
        tag=f"launch unanswered · {held}",
        why=f"its launch was not answered ({detail}), and may still happen",
        sentence=f"The launch of this run was not answered ({detail}), and may still happen. It keeps {held} "
        f"until its worker reports, or until {clock(until)}; then it fails.",
    )


def untold_word(request: RequestRecord) -> Word:
    """What the page of a run says that waits no more, whoever was to say so before."""
    if request.state == "granted":
        return Word(
            request.run_id,
            "granted",
            "granted",
            "holds its GPUs",
            why="it has been granted its GPUs",
        )
    if request.state == "cancelled":
        return cancelled_word(request.run_id, "cancelled")
    return Word(request.run_id, request.state, request.state, request.state, why="the run is over")


def cancelled_word(run_id: str, ended_as: str) -> Word:
    """What the page of a run says that ended before it got any GPUs."""
    return Word(run_id, "cancelled", ended_as, ended_as, why=f"the run ended: {ended_as}")


def say(instance: DagsterInstance, word: Word) -> None:
    """Write one word on its run's page; a run that is gone has no page."""
    run = write_tags(instance, word.run_id, state_tags(word.state, word.tag, word.why))
    if word.sentence is not None and run is not None:
        instance.report_engine_event(word.sentence, run)
