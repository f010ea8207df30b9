"""What a run's page says: its tags and a sentence in its event log at each change, a few a pass.

A tag write and an event cost milliseconds each, and a queue can be long: `PER_PASS` bounds them, the
first in line first. The ledger keeps what was told, so that nothing is told twice.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice

from dagster import DagsterInstance

from dagster_gpufair.gate.tags import MAX_DURATION, REASON, STATE
from dagster_gpufair.ledger import requests
from dagster_gpufair.ledger.connect import Ledger
from dagster_gpufair.ledger.leases import LeaseRecord
from dagster_gpufair.ledger.requests import RequestRecord
from dagster_gpufair.policy.models import Policy
from dagster_gpufair.policy.quantities import format_duration, format_gpus
from dagster_gpufair.scheduling.model import Plan, Start
from dagster_gpufair.scheduling.places import places

PER_PASS = 12
PLACE_AGAIN_AFTER = 30.0
"""Seconds after which a changed place in line alone is worth a tag."""


@dataclass(frozen=True)
class Told:
    """What a run's page says now. ``reason`` is the bare reason, ``tag`` what its tag shows."""

    reason: str
    tag: str
    at: float


@dataclass(frozen=True)
class Word:
    """One thing to say on a run's page; without a sentence only the tags change."""

    run_id: str
    state: str
    reason: str
    tag: str
    sentence: str | None = None


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
    return time.strftime("%H:%M" if today else "%Y-%m-%d %H:%M", when)


def waiting_words(
    plan: Plan, outside: Mapping[str, tuple[str, str]], trouble: str | None
) -> Iterator[Word]:
    """For each waiting run, first in line first, what its page should say.

    Args:
        outside: runs the plan would start, but for something outside it: (reason, sentence).
        trouble: what is wrong with the policy file, if anything.
    """
    for start in plan.starts:
        if start.request.id in outside:
            reason, why = outside[start.request.id]
            yield _waiting(start.request.id, reason, f"{reason} · {start.pool}", why, trouble)
    place_of = places(plan)
    for group in plan.waiting:
        for request in group.requests:
            pool, place = place_of[request.id]
            line = f"{ordinal(place)} in {pool}"
            why = f"{line}: {group.message}"
            yield _waiting(request.id, group.reason, f"{group.reason} · {line}", why, trouble)


def _waiting(run_id: str, reason: str, tag: str, why: str, trouble: str | None) -> Word:
    sentence = f"Waiting, {why} `gpufair explain {short(run_id)}` says more."
    if trouble is None:
        return Word(run_id, "waiting", reason, tag, sentence)
    sentence += f" The policy file changes nothing now: {trouble}."
    return Word(run_id, "waiting", f"{reason}!", f"{tag} · policy file broken", sentence)


def granted_word(start: Start, policy: Policy, now: float) -> Word:
    """What the page of a run says that has just got its GPUs."""
    request = start.request
    where = f" on {', '.join(sorted(start.nodes))}" if start.nodes else ""
    fewer = f" (of {format_gpus(request.gpus)} asked)" if start.gpus < request.gpus else ""
    why = {
        "urgent": f"because tier '{request.tier}' is urgent",
        "guaranteed": f"within the quota of {request.team}",
        "borrowing": f"borrowed: it is beyond the quota of {request.team} and nobody else uses it",
    }[start.class_.label]
    return Word(
        run_id=request.id,
        state="granted",
        reason=start.class_.label,
        tag=f"{start.class_.label} · {format_gpus(start.gpus)} × {start.pool}",
        sentence=(
            f"Granted {format_gpus(start.gpus)} × {start.pool}{where}{fewer}, {why}, with "
            f"{start.points.score:,.0f} points after waiting {format_duration(now - request.submitted)}."
        ),
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
    )


def say(instance: DagsterInstance, word: Word) -> None:
    """Write one word on its run's page; a run that is gone has no page."""
    run = instance.get_run_by_id(word.run_id)
    if run is None:
        return
    instance.add_run_tags(word.run_id, {STATE: word.state, REASON: word.tag})
    if word.sentence is not None:
        instance.report_engine_event(word.sentence, run)


class Teller:
    """Says what is new, `PER_PASS` words a pass, and remembers what was said."""

    def __init__(self, instance: DagsterInstance, ledger: Ledger):
        self._instance = instance
        self._ledger = ledger
        self._told: dict[str, Told] = {}
        self._released: deque[Word] = deque()

    def remember(self, records: Iterable[RequestRecord]) -> None:
        """Take from the ledger what an earlier daemon has said."""
        self._told = {
            record.id: Told(record.told_reason, "", record.told_at or 0.0)
            for record in records
            if record.told_reason is not None
        }

    def released(self, word: Word) -> None:
        """Have it said that a run has given its GPUs back; nothing more is said of it then."""
        self._told.pop(word.run_id, None)
        self._released.append(word)

    def speak(self, words: Iterable[Word], now: float) -> None:
        """Say the new ones of these words, first things first, within the bound."""
        said = []
        for word in islice(self._news(words, now), PER_PASS):
            say(self._instance, word)
            self._told[word.run_id] = Told(word.reason, word.tag, now)
            said.append(word)
        for _ in range(PER_PASS - len(said)):
            if not self._released:
                break
            say(self._instance, self._released.popleft())
        if said:
            with self._ledger.writing() as session:
                for word in said:
                    requests.told(session, word.run_id, word.state, word.reason, now)

    def _news(self, words: Iterable[Word], now: float) -> Iterator[Word]:
        """A changed reason in a sentence, a changed place after a while as a tag."""
        for word in words:
            before = self._told.get(word.run_id)
            if before is None or before.reason != word.reason:
                yield word
            elif before.tag != word.tag and now - before.at >= PLACE_AGAIN_AFTER:
                yield replace(word, sentence=None)
