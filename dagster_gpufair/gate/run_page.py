"""What a run's page says: its tags and a sentence in its event log at each change, a few a pass.

A tag write and an event cost milliseconds each, and a queue can be long: `PER_PASS` bounds them, the
first in line first. The ledger keeps what was told, so that nothing is told twice.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice

from dagster import DagsterInstance

from dagster_gpufair.engine.would_stop import Remark
from dagster_gpufair.gate.tags import LONGEST_WHY, MAX_DURATION, shortened, state_tags
from dagster_gpufair.ledger import requests
from dagster_gpufair.ledger.connect import Ledger
from dagster_gpufair.ledger.leases import LeaseRecord
from dagster_gpufair.ledger.requests import RequestRecord
from dagster_gpufair.policy.models import Policy
from dagster_gpufair.policy.quantities import format_duration, format_gpus
from dagster_gpufair.scheduling.accounts import account_of
from dagster_gpufair.scheduling.model import Class, Plan, Start
from dagster_gpufair.scheduling.places import places

PER_PASS = 12
PLACES_AGAIN_AFTER = 30.0
"""So many seconds apart, changed places in line are worth a tag."""
IN_FRONT = 100
"""For so many at the front: their places, and their reasons anew when the policy has changed."""
LONGEST_REMARK = 140
"""Of the characters of a tag."""
_TROUBLE, _REMARK = "!", "+"
"""Marks of a reason: the policy file is broken; there are runs that would be stopped for it."""


@dataclass(frozen=True)
class Told:
    """What a run's page says now. ``reason`` is the reason with its marks, ``tag`` what its tag shows.

    ``remark`` is what else its tag says of runs that would be stopped. ``policy`` is the version by
    which it was said; None if an earlier daemon said it.
    """

    reason: str
    tag: str
    policy: int | None
    remark: str = ""


@dataclass(frozen=True)
class Word:
    """One thing to say on a run's page; without a sentence only the tags change.

    ``why`` is for a tag too: while a run is queued, Dagster's page of it hides the event log. Of a run
    that waits it begins with the time: it may speak of what is to come, and stays until something changes.
    """

    run_id: str
    state: str
    reason: str
    tag: str
    why: str
    sentence: str | None = None
    remark: str = ""


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
    """A time of day in the server's zone, with the day where it is not today."""
    when = time.localtime(at)
    today = time.localtime()[:3] == when[:3]
    return time.strftime("%H:%M", when) if today else _day_and_clock(at)


def _day_and_clock(at: float) -> str:
    """The same always with the day: for what may be read on another one."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))


class Line:
    """Why each waiting run waits, and where in line; a pass says only what is new of it.

    Args:
        plan: the pass's plan.
        outside: runs that are in no line of the plan's: {run id: (line, reason, sentence)}.
        trouble: what is wrong with the policy file, if anything.
        policy: the version of the policy it was decided by.
        quiet: runs of which nothing is said yet.
        remarks: for whom what would be stopped.
    """

    def __init__(
        self,
        plan: Plan,
        outside: Mapping[str, tuple[str, str, str]],
        trouble: str | None,
        policy: int | None,
        quiet: Collection[str] = (),
        remarks: Mapping[str, Remark] | None = None,
    ) -> None:
        self.policy = policy
        self._quiet = quiet
        self._remarks = remarks or {}
        self._plan = plan
        self._outside = outside
        self._trouble = trouble

    def reasons(self) -> Iterator[tuple[str, str, str]]:
        """(run id, reason, sentence) of all that wait, first in line first.

        What is news besides the reason itself is a mark at its end.
        """
        mark = "" if self._trouble is None else _TROUBLE
        for run_id, (_, reason, why) in self._outside.items():
            if run_id not in self._quiet:
                yield run_id, reason + mark, why
        for group in self._plan.waiting:
            reason = group.reason + mark
            for request in group.requests:
                if request.id not in self._quiet:
                    more = _REMARK if request.id in self._remarks else ""
                    yield request.id, reason + more, group.message

    @cached_property
    def _places(self) -> Mapping[str, tuple[str, int]]:
        return places(self._plan)

    def word(self, run_id: str, reason: str, why: str, now: float) -> Word:
        """What the page of a waiting run should say, as of ``now``."""
        if run_id in self._outside:
            line = self._outside[run_id][0]
        else:
            pool, place = self._places[run_id]
            line = f"{ordinal(place)} in {pool}"
        tag = f"{reason.rstrip(_TROUBLE + _REMARK)} · {line}"
        said, remark, why = why, "", f"{_day_and_clock(now)}: {why}"
        if reason.endswith(_REMARK):
            found = self._remarks[run_id]
            remark = shortened(found.short, LONGEST_REMARK)
            said = f"{said} {found.sentence}"
            why = f"{shortened(why, LONGEST_WHY - len(remark) - 1)} {remark}"
        sentence = f"Waiting, {line}: {said} `gpufair explain {short(run_id)}` says more."
        if self._trouble is not None:
            tag += " · policy file broken"
            sentence += f" The policy file changes nothing now: {self._trouble}."
        return Word(run_id, "waiting", reason, tag, why, sentence, remark)


def granted_word(start: Start, policy: Policy, now: float) -> Word:
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
        run_id=request.id,
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


def notice_word(lease: LeaseRecord) -> Word:
    """What the page of a run says that nears its ``gpufair/max_duration``."""
    assert lease.max_duration is not None
    end = lease.started_at + lease.max_duration
    return Word(
        run_id=lease.run_id,
        state="granted",
        reason="ends",
        tag=f"ends at {clock(end)}",
        why=f"its {MAX_DURATION} is {format_duration(lease.max_duration)}",
        sentence=f"This run is stopped at {clock(end)}: it asked for {MAX_DURATION} "
        f"{format_duration(lease.max_duration)}. Save what it has.",
    )


def stopped_word(lease: LeaseRecord) -> Word:
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


def released_word(lease: LeaseRecord, ended_as: str, now: float) -> Word:
    """What the page of a run says whose GPUs are free again."""
    held = format_duration(now - lease.started_at)
    return Word(
        run_id=lease.run_id,
        state="released",
        reason=ended_as,
        tag=f"{format_gpus(lease.gpus)} × {lease.pool} for {held}",
        why=f"the run ended: {ended_as}",
    )


def cancelled_word(run_id: str, ended_as: str) -> Word:
    """What the page of a run says that ended before it got any GPUs."""
    return Word(run_id, "cancelled", ended_as, ended_as, why=f"the run ended: {ended_as}")


def say(instance: DagsterInstance, word: Word) -> None:
    """Write one word on its run's page; a run that is gone has no page."""
    run = instance.get_run_by_id(word.run_id)
    if run is None:
        return
    instance.add_run_tags(word.run_id, state_tags(word.state, word.tag, word.why))
    if word.sentence is not None:
        instance.report_engine_event(word.sentence, run)


class Teller:
    """Says what is new, `PER_PASS` words a pass, and remembers what was said."""

    def __init__(self, instance: DagsterInstance, ledger: Ledger):
        self._instance = instance
        self._ledger = ledger
        self._told: dict[str, Told] = {}
        self._over: deque[Word] = deque()
        self._places_at = 0.0

    def remember(self, records: Iterable[RequestRecord]) -> None:
        """Take from the ledger what an earlier daemon has said."""
        self._told = {
            record.id: Told(record.told_reason, "", None)
            for record in records
            if record.told_reason is not None
        }

    def granted(self, run_id: str) -> None:
        """Whatever was said of a run before: should it wait again, that is news."""
        self._told.pop(run_id, None)

    def over(self, word: Word) -> None:
        """Have the last said of a run that holds no GPUs any more and waits for none."""
        self._told.pop(word.run_id, None)
        self._over.append(word)

    def speak(self, line: Line, now: float) -> None:
        """Say what is new of those that wait, first in line first, then of those that are over."""
        said = []
        for word in islice(self._news(line, now), PER_PASS):
            say(self._instance, word)
            self._told[word.run_id] = Told(word.reason, word.tag, line.policy, word.remark)
            said.append(word)
        for _ in range(PER_PASS - len(said)):
            if not self._over:
                break
            say(self._instance, self._over.popleft())
        if said:
            with self._ledger.writing() as session:
                for word in said:
                    requests.told(session, word.run_id, word.state, word.reason, now)

    def _news(self, line: Line, now: float) -> Iterator[Word]:
        """A changed reason in a sentence; of the first in line also the same by a changed policy.

        Now and then their changed places.
        """
        for place, (run_id, reason, why) in enumerate(line.reasons()):
            before = self._told.get(run_id)
            by_another = before is not None and before.policy not in (None, line.policy)
            if before is None or before.reason != reason or (by_another and place < IN_FRONT):
                yield line.word(run_id, reason, why, now)
        if now - self._places_at < PLACES_AGAIN_AFTER:
            return
        self._places_at = now
        for run_id, reason, why in islice(line.reasons(), IN_FRONT):
            before = self._told.get(run_id)
            word = line.word(run_id, reason, why, now)
            if before is not None and (before.tag, before.remark) != (word.tag, word.remark):
                yield replace(word, sentence=None)
