"""A reason in a few words, with who is in the way: for a row of the queue."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dagster_gpufair.cli.explain.blockers import requests_in_the_way
from dagster_gpufair.cli.moment.current import Moment, Waiter
from dagster_gpufair.cli.output.tables import LONGEST_SENTENCE, clock, plain, sentence
from dagster_gpufair.policy.quantities import format_gpus
from dagster_gpufair.scheduling import wording
from dagster_gpufair.scheduling.holding import Holding
from dagster_gpufair.scheduling.reasons import NO_BORROWING

_LONGEST_ERROR = 120
"""Characters of an error in a code location; `gpufair explain` has all."""


def briefly(moment: Moment, waiter: Waiter) -> str:
    """``lower_priority: kept for 3f2a91c0``, ``insufficient_gpus: h100 has 5 of 16 free``."""
    if waiter.reason is None:
        return sentence(waiter.message)
    words = _WORDS.get(waiter.reason)
    request, policy = waiter.request, moment.policy
    by_rules = (
        request.id not in moment.state.blocked
        and request.team in policy.teams
        and request.tier in policy.tiers
        and waiter.pool in policy.pools
    )
    if words is not None and by_rules:
        return sentence(f"{waiter.reason}: {words(moment, waiter)}")
    longest = _LONGEST_ERROR if waiter.reason == "environment" else LONGEST_SENTENCE
    return plain(f"{waiter.reason}: {waiter.message}", longest)


def _holding(moment: Moment, waiter: Waiter) -> Holding:
    return moment.settled_snapshot.accounts.holding(waiter.request, waiter.pool)


def _quota(moment: Moment, waiter: Waiter) -> str:
    rights = moment.settled_snapshot.rights(waiter.request)
    barred = rights.barred if rights is not None else None
    return f"{wording.used(_holding(moment, waiter))}, and {barred or NO_BORROWING}"


def _borrow_limit(moment: Moment, waiter: Waiter) -> str:
    holding = _holding(moment, waiter).limited_by(waiter.request.sizes[-1])
    limit = format_gpus(holding.borrow_limit or 0)
    return f"{wording.used(holding)}, and may borrow {limit} at most"


def _ceiling(moment: Moment, waiter: Waiter) -> str:
    least = waiter.request.sizes[-1]
    exceeded = moment.settled_snapshot.ceilings.exceeded(waiter.request, waiter.pool, least)
    if exceeded is None:
        return waiter.message
    return (
        f"{waiter.request.team} uses {exceeded.used:g} {exceeded.what} of {exceeded.most:g}, and it "
        f"declares {exceeded.asked:g}"
    )


def _free(moment: Moment, waiter: Waiter) -> str:
    room = moment.settled_snapshot.room(waiter.pool)
    return wording.free(moment.policy, waiter.pool, room, waiter.request)


def _lower_priority(moment: Moment, waiter: Waiter) -> str:
    owners = [moment.names[request.id] for request in requests_in_the_way(moment, waiter)]
    if owners:
        return f"kept for {' and '.join(owners)}"
    return _kept_for_nobody_yet(moment, waiter)


def _kept_for_nobody_yet(moment: Moment, waiter: Waiter) -> str:
    """Where it is a lane or a window that is in the way."""
    snapshot, request = moment.settled_snapshot, waiter.request
    asker = snapshot.asker(request, _holding(moment, waiter), request.sizes[-1])
    if asker is not None and asker.gpus > snapshot.left_for(asker):
        return "kept in the fast lane, for smaller and shorter runs"
    windows = snapshot.windows_ahead(waiter.pool)
    window = next((each for each in windows if each.team != request.team), None)
    if window is None:
        return waiter.message
    return f"kept for {window.team} from {clock(window.start, moment.now)} on"


def _maintenance(moment: Moment, waiter: Waiter) -> str:
    nodes = [plain(each.node) for each in moment.cordons if each.pool == waiter.pool]
    return f"it would fit but for {', '.join(nodes)}"


def _reserve_held(moment: Moment, waiter: Waiter) -> str:
    return wording.held_back(moment.settled_snapshot.accounts.keepers(_holding(moment, waiter)))


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
