"""A reason in a few words, with who or what it waits for: for a row of the queue."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dagster_gpufair.cli.explain.blockers import requests_in_the_way
from dagster_gpufair.cli.moment.current import Moment, Waiter
from dagster_gpufair.cli.output.text import LONGEST_SENTENCE, plain, sentence
from dagster_gpufair.cli.output.times import clock
from dagster_gpufair.scheduling.accounts.holding import Holding
from dagster_gpufair.scheduling.waiting import words
from dagster_gpufair.scheduling.waiting.reasons import NO_BORROWING

_LONGEST_ERROR = 120
"""Characters of an error in a code location; `gpufair explain` has all."""


def brief_reason(moment: Moment, waiter: Waiter) -> str:
    """``lower_priority: reserved for 3f2a91c0``, ``insufficient_gpus: h100 has no free GPUs``."""
    if waiter.reason is None:
        return sentence(waiter.message)
    say = _WORDS.get(waiter.reason)
    request, policy = waiter.request, moment.policy
    by_rules = (
        request.id not in moment.state.blocked
        and request.team in policy.teams
        and request.tier in policy.tiers
        and waiter.pool in policy.pools
    )
    if say is not None and by_rules:
        return sentence(f"{waiter.reason}: {say(moment, waiter)}")
    longest = _LONGEST_ERROR if waiter.reason == "environment" else LONGEST_SENTENCE
    return plain(f"{waiter.reason}: {waiter.message}", longest)


def _holding(moment: Moment, waiter: Waiter) -> Holding:
    return moment.settled_snapshot.accounts.holding(waiter.request, waiter.pool)


def _quota(moment: Moment, waiter: Waiter) -> str:
    rights = moment.settled_snapshot.rights(waiter.request, waiter.pool)
    barred = rights.barred if rights is not None else None
    return f"{words.used(_holding(moment, waiter))}, and {barred or NO_BORROWING}"


def _borrow_limit(moment: Moment, waiter: Waiter) -> str:
    return words.borrow_limit(_holding(moment, waiter).limited_by(waiter.request.sizes[-1]))


def _ceiling(moment: Moment, waiter: Waiter) -> str:
    least = waiter.request.sizes[-1]
    exceeded = moment.settled_snapshot.ceilings.exceeded(waiter.request, waiter.pool, least)
    return (
        waiter.message if exceeded is None else words.ceiling_reached(waiter.request.team, exceeded)
    )


def _free(moment: Moment, waiter: Waiter) -> str:
    room = moment.settled_snapshot.room(waiter.pool)
    return words.free(moment.policy, waiter.pool, room, waiter.request)


def _lower_priority(moment: Moment, waiter: Waiter) -> str:
    owners = [moment.names[request.id] for request in requests_in_the_way(moment, waiter)]
    if owners:
        return f"reserved for {' and '.join(owners)}"
    return _for_nobody_yet(moment, waiter)


def _for_nobody_yet(moment: Moment, waiter: Waiter) -> str:
    """Where a fast lane or a window keeps the GPUs."""
    snapshot, request = moment.settled_snapshot, waiter.request
    asker = snapshot.asker(request, _holding(moment, waiter), request.sizes[-1])
    if asker is not None and asker.gpus > snapshot.left_for(asker):
        return "the free GPUs are in the fast lane, for smaller and shorter runs"
    windows = snapshot.windows_ahead(waiter.pool)
    window = next((each for each in windows if each.team != request.team), None)
    if window is None:
        return waiter.message
    return f"reserved for a window of {window.team} from {clock(window.start, moment.now)}"


def _maintenance(moment: Moment, waiter: Waiter) -> str:
    nodes = [plain(each.node) for each in moment.cordons if each.pool == waiter.pool]
    return f"the GPUs it needs are on {', '.join(nodes)}, in maintenance"


def _reserve_held(moment: Moment, waiter: Waiter) -> str:
    return words.held_back(moment.settled_snapshot.accounts.keepers(_holding(moment, waiter)))


_WORDS: Mapping[str, Callable[[Moment, Waiter], str]] = {
    "quota_exhausted": _quota,
    "borrow_limit": _borrow_limit,
    "ceiling": _ceiling,
    "lower_priority": _lower_priority,
    "maintenance": _maintenance,
    "insufficient_gpus": _free,
    "fragmented": _free,
    "reserve_held": _reserve_held,
}
