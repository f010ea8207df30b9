"""The moment before any past pass, from the record alone: so a decision can be made again, and compared.

Only events are read, and the policies that they name. A pass that changed anything left a ``pass`` event;
what it decided from is all that was recorded before it, and what the event itself holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, cast

from dagster_gpufair.ledger.events import Event
from dagster_gpufair.ledger.leases import recorded_cards
from dagster_gpufair.ledger.state import where_it_counts
from dagster_gpufair.policy.models import Pausable, Policy
from dagster_gpufair.scheduling.model import Account, Blocked, Lease, Promise, Request, State

_ASKED = {field.name for field in fields(Request)} - {"id", "promised", "rejected"}


class PastPass(NamedTuple):
    """A pass that was made: when, by which policy, from what, and what it started."""

    at: float
    policy_version: int
    moment: Moment
    started: tuple[str, ...]

    def state(self, policy: Policy) -> State:
        """What it decided from."""
        return self.moment.state(policy, self.at)

    def rules(self, policy: Policy) -> Policy:
        """The policy of that version as it was followed then: without what was paused."""
        return policy.while_paused(self.moment.paused)


@dataclass
class _Held:
    """A lease by its request, and the source it counts for."""

    lease: Lease
    source: tuple[str, str] | None


class Moment:
    """What was true after some events. `take` them in order."""

    def __init__(self) -> None:
        self._asked: dict[str, Request] = {}
        """All requests, also those that do not wait."""
        self._waiting: set[str] = set()
        self._held: dict[int, _Held] = {}
        self._starts: dict[tuple[str, str], dict[int, float]] = {}
        """By source, when its leases were granted."""
        self._promised: dict[str, Promise] = {}
        self._cordoned: dict[str, frozenset[str]] = {}
        self.blocked: dict[str, tuple[str, str]] = {}
        self.used: dict[tuple[Account, str], float] = {}
        self.paused: frozenset[Pausable] = frozenset()

    def copy(self) -> Moment:
        """The same, to stay as it is."""
        other = Moment()
        other._asked, other._waiting = dict(self._asked), set(self._waiting)
        other._held = dict(self._held)
        other._starts = {source: dict(starts) for source, starts in self._starts.items()}
        other._promised, other._cordoned = dict(self._promised), dict(self._cordoned)
        other.blocked, other.used = dict(self.blocked), dict(self.used)
        other.paused = self.paused
        return other

    def state(self, policy: Policy, now: float) -> State:
        """As the decision saw it."""
        waiting = [
            replace(self._asked[id_], promised=self._promised.get(id_)) for id_ in self._waiting
        ]
        sources = {(request.team, request.source) for request in waiting}
        return State(
            requests=sorted(waiting, key=lambda request: (request.submitted, request.id)),
            leases=[
                lease
                for _, held in sorted(self._held.items())
                for lease in where_it_counts(policy, _as_of(held.lease, now))
            ],
            used=self.used,
            source_starts={
                source: max(starts.values())
                for source, starts in self._starts.items()
                if starts and source in sources
            },
            cordoned=self._cordoned,
            blocked={
                id_: cast("Blocked", why)
                for id_, why in self.blocked.items()
                if id_ in self._waiting
            },
        )

    def take(self, event: Event) -> None:
        """Something more has happened."""
        what = _HAPPENED.get(event.kind)
        if what is not None:
            what(self, event)

    # -- requests -------------------------------------------------------------------------------

    def _submitted(self, event: Event) -> None:
        request = _request(event.data)
        self._asked[request.id] = request
        self._waiting.add(request.id)

    def _left(self, event: Event) -> None:
        self._waiting.discard(event.data["request"])
        self.blocked.pop(event.data["request"], None)

    # -- leases ---------------------------------------------------------------------------------

    def _granted(self, event: Event) -> None:
        data = event.data
        if event.kind == "ungated":
            self._asked[data["request"]] = _request(data)
        self._left(event)
        request = self._asked[data["request"]]
        assert event.pool is not None
        cards = recorded_cards(data.get("cards"))
        lease = request.lease(event.pool, data["gpus"], event.at, data["nodes"], cards)
        if event.kind == "ungated":
            lease = replace(lease, began=event.at)
        source = None if request.source is None else (request.team, request.source)
        self._held[data["lease"]] = _Held(lease, source)
        if source is not None:
            self._starts.setdefault(source, {})[data["lease"]] = event.at

    def _change(self, event: Event, **changes: Any) -> None:
        held = self._held.get(event.data["lease"])
        if held is not None:
            self._held[event.data["lease"]] = _Held(replace(held.lease, **changes), held.source)

    def _began(self, event: Event) -> None:
        self._change(event, began=event.data["began"])

    def _lingers(self, event: Event) -> None:
        self._change(event, overdue=True)

    def _noticed(self, event: Event) -> None:
        self._change(event, notice_until=event.data["until"], notice_for=event.data["for"])

    def _spared(self, event: Event) -> None:
        self._change(event, notice_until=None, notice_for=None)

    def _was_kept(self, event: Event) -> None:
        self._change(event, kept_until=event.data["until"])

    def _was_saved(self, event: Event) -> None:
        self._change(event, checkpointed=event.data["saved"])

    def _renewed(self, event: Event) -> None:
        self._change(event, term_from=event.at)

    def _released(self, event: Event) -> None:
        self._held.pop(event.data["lease"], None)

    def _recalled(self, event: Event) -> None:
        held = self._held.pop(event.data["lease"], None)
        if held is not None and held.source is not None:
            self._starts[held.source].pop(event.data["lease"], None)
        self._waiting.add(event.data["request"])
        if event.data.get("blocked"):
            reason, message = event.data["blocked"]
            self.blocked[event.data["request"]] = (reason, message)

    def _preempted(self, event: Event) -> None:
        self._held.pop(event.data["lease"], None)
        id_ = event.data["request"]
        before = self._asked[id_]
        again = before.preempted + 1
        self._asked[id_] = replace(before, submitted=event.at, preempted=again, rejected=False)
        self._waiting.add(id_)

    # -- everything else ------------------------------------------------------------------------

    def _was_promised(self, event: Event) -> None:
        assert event.pool is not None
        data = event.data
        self._promised[data["request"]] = Promise(event.pool, data["gpus"], data["nodes"])

    def _was_decided(self, event: Event) -> None:
        if event.data["as"] == "rejected":
            id_ = event.data["request"]
            self._asked[id_] = replace(self._asked[id_], rejected=True)

    def _withdrawn(self, event: Event) -> None:
        self._promised.pop(event.data["request"], None)

    def _was_cordoned(self, event: Event) -> None:
        assert event.pool is not None
        away = self._cordoned.get(event.pool, frozenset()) | {event.data["node"]}
        self._cordoned[event.pool] = away

    def _was_uncordoned(self, event: Event) -> None:
        assert event.pool is not None
        away = self._cordoned.get(event.pool, frozenset()) - {event.data["node"]}
        if away:
            self._cordoned[event.pool] = away
        else:
            self._cordoned.pop(event.pool, None)

    def _passed(self, event: Event) -> None:
        for id_ in event.data["unblocked"]:
            self.blocked.pop(id_, None)
        for id_, (reason, message) in event.data["blocked"].items():
            self.blocked[id_] = (reason, message)
        self.paused = frozenset(event.data.get("paused", ()))
        self.used = {
            (Account(team, project), pool): hours
            for team, project, pool, hours in event.data["used"]
        }

    def _clock_was_set(self, event: Event) -> None:
        by = event.data["by"]
        for id_ in self._asked:
            self._asked[id_] = replace(self._asked[id_], submitted=self._asked[id_].submitted + by)
        for number, held in self._held.items():
            moved = {
                name: at + by
                for name in ("started", "began", "checkpointed", "notice_until", "term_from")
                if (at := getattr(held.lease, name)) is not None
            }
            self._held[number] = _Held(replace(held.lease, **moved), held.source)
            if held.source is not None and number in self._starts[held.source]:
                self._starts[held.source][number] += by


_HAPPENED: Mapping[str, Callable[[Moment, Event], None]] = {
    "submitted": Moment._submitted,
    "refused": Moment._left,
    "cancelled": Moment._left,
    "granted": Moment._granted,
    "ungated": Moment._granted,
    "started": Moment._began,
    "notice": Moment._noticed,
    "lingering": Moment._lingers,
    "spared": Moment._spared,
    "kept": Moment._was_kept,
    "saved": Moment._was_saved,
    "renewed": Moment._renewed,
    "released": Moment._released,
    "recalled": Moment._recalled,
    "preempted": Moment._preempted,
    "promised": Moment._was_promised,
    "withdrawn": Moment._withdrawn,
    "decided": Moment._was_decided,
    "cordoned": Moment._was_cordoned,
    "uncordoned": Moment._was_uncordoned,
    "pass": Moment._passed,
    "clock": Moment._clock_was_set,
}


def past_passes(events: Iterable[Event]) -> Iterator[PastPass]:
    """All passes that changed anything, with what they decided from.

    Args:
        events: all there are, oldest first.
    """
    moment = Moment()
    for event in events:
        moment.take(event)
        if event.kind == "pass":
            data = event.data
            yield PastPass(event.at, data["policy_version"], moment.copy(), tuple(data["starts"]))


def _request(data: Mapping[str, Any]) -> Request:
    asked = {key: value for key, value in data.items() if key in _ASKED}
    return Request(id=data["request"], **{**asked, "pools": tuple(asked["pools"])})


def _as_of(lease: Lease, now: float) -> Lease:
    """What has not begun yet begins now at the earliest."""
    if lease.began is None and now > lease.started:
        return replace(lease, began=now, starting=True)
    return replace(lease, starting=lease.began is None)
