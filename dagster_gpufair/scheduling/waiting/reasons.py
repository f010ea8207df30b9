"""Why a request waits: exactly one reason, a sentence with its numbers, and the blockers.

It is judged by the least that the request accepts, in the first pool of its list in which only space
is missing; if the rules allow it in none of them, in the first that is in the policy. There, the
first of these that holds:

- ``environment``: none of its pools is in the policy any more
- ``preempting``: GPUs are promised to it, and its victims are under notice
- ``approval``: a person has to approve that its victims are stopped
- ``paused``: it would borrow, and a person has switched borrowing off for a time
- ``quota_exhausted``: it would be over quota, and borrowing is off or not allowed for it
- ``borrow_limit``: its account would borrow more than it may
- ``ceiling``: the running work of its team would exceed a ceiling
- ``lower_priority``: it would fit, but for what is reserved, promised or claimed, or kept in a lane or for a
  window
- ``maintenance``: it would fit if no node were in maintenance
- ``insufficient_gpus``: fewer GPUs are free than it needs
- ``fragmented``: enough are free, but the nodes cannot give the shape
- ``reserve_held``: enough are free, but some of them are held back for others
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import NamedTuple

from dagster_gpufair.policy.quantities import duration_in_words
from dagster_gpufair.scheduling.accounts.holding import PAUSED, Holding
from dagster_gpufair.scheduling.calendar.kept import Kept
from dagster_gpufair.scheduling.model import (
    Plan,
    Preemption,
    Reason,
    Request,
    Reservation,
    Sentence,
)
from dagster_gpufair.scheduling.snapshot import Snapshot
from dagster_gpufair.scheduling.waiting import words

NO_BORROWING = "its borrow_limit is 0"
REMOVED_POOL = "Launch the run again for a pool of the policy, or put this pool back."
BY_RULE = ("quota_exhausted", "borrow_limit", "paused")
BESIDES_SPACE = (*BY_RULE, "ceiling")
MOST_NAMED = 4
"""A sentence names no more reservations than this."""


class Why(NamedTuple):
    """Where a request stands in line, for how many GPUs, and what keeps it from starting there.

    ``blockers`` names what does: requests, leases or accounts, depending on the reason.
    """

    pool: str
    gpus: int
    reason: Reason
    said: Sentence | str
    blockers: tuple[str, ...] = ()


class Reasons:
    """Reasons once a pass's starts are known. ``uncordoned`` is that moment with all nodes ready."""

    def __init__(
        self,
        snapshot: Snapshot,
        uncordoned: Snapshot | None,
        decided: Plan,
    ) -> None:
        self._snapshot = snapshot
        self._policy = snapshot.policy
        self._uncordoned = uncordoned
        self._reserved: dict[str, list[Reservation]] = {}
        self._awaiting = {each.request.id for each in decided.preemptions if each.awaits_approval}
        for each in decided.reservations:
            if not each.of_quota:
                self._reserved.setdefault(each.pool, []).append(each)
        self._found: dict[tuple[object, ...], Why] = {}
        self._free: dict[tuple[str, int, int | None], str] = {}

    def why(self, request: Request) -> Why:
        """Why the request waits."""
        kept = self._snapshot.promises.of(request.id) if request.promised is not None else None
        if kept is not None:
            return self.preempting(request, kept.holding, kept.gpus)
        rights = [self._snapshot.rights(request, pool) for pool in self._snapshot.pools(request)]
        key = (
            request.team,
            request.project,
            request.pools,
            request.sizes,
            request.gpus_per_node,
            tuple(rights) if all(rights) else request.tier,
            request.cpus,
            request.memory_gib,
        )
        why = self._found.get(key)
        if why is None:
            why = self._found[key] = self._find(request)
        if why.reason != "lower_priority":
            return why
        # Which reservations block it depends on how long it lasts, too.
        by_length = (*key, request.max_duration)
        if by_length not in self._found:
            self._found[by_length] = self._find(request)
        return self._found[by_length]

    def _find(self, request: Request) -> Why:
        gpus, pools = request.sizes[-1], self._snapshot.pools(request)
        if not pools:
            pool = request.pools[0] if request.pools else ""
            missing = self._not_in_policy(request, pool, "pool", pool, self._policy.pools)
            return Why(pool, gpus, "environment", f"{missing} {REMOVED_POOL}")
        holdings = [self._snapshot.accounts.holding(request, pool) for pool in pools]
        rights = [self._snapshot.rights(request, pool) for pool in pools]
        if None in rights:
            return Why(pools[0], gpus, "quota_exhausted", self._no_rights(request, pools[0]))
        reasons = [self._reason(request, holding, gpus) for holding in holdings]
        at = next((at for at, reason in enumerate(reasons) if reason not in BESIDES_SPACE), 0)
        said = Sentence(partial(self._say, request, holdings, reasons, at))
        blockers = self._blockers(request, holdings[at], reasons[at])
        return Why(pools[at], gpus, reasons[at], said, blockers)

    def _say(
        self,
        request: Request,
        holdings: Sequence[Holding],
        reasons: Sequence[Reason],
        at: int,
    ) -> str:
        """The sentence about the pool where it stands, and a word on the others."""
        holding = holdings[at]
        facts = self._facts(request, holding, reasons[at])
        message = f"{self._needs(request, holding.pool)}; {facts}."
        others = [
            f"{other.pool} ({reason})"
            for other, reason in zip(holdings, reasons, strict=True)
            if other is not holding
        ]
        return f"{message} It cannot start in {', '.join(others)} either." if others else message

    def _reason(self, request: Request, holding: Holding, gpus: int) -> Reason:
        rights = self._snapshot.rights(request, holding.pool)
        assert rights is not None
        if holding.allowed_class(gpus, rights) is None:
            if rights.barred == PAUSED:
                return "paused"
            barred = rights.barred or holding.limited_by(gpus).borrow_limit == 0
            return "quota_exhausted" if barred else "borrow_limit"
        if self._snapshot.ceilings.exceeded(request, holding.pool, gpus):
            return "ceiling"
        if self._snapshot.fits_but_for_what_is_kept(request, holding, gpus):
            return "lower_priority"
        asker = self._snapshot.asker(request, holding, gpus)
        if asker is not None and self._snapshot.calendar.in_the_end.never_leaves(asker):
            return "lower_priority"
        if self._fits_uncordoned(request, holding, gpus):
            return "maintenance"
        room = self._snapshot.room(holding.pool)
        if gpus > room.idle:
            return "insufficient_gpus"
        has_shape = room.could_place(gpus, request.gpus_per_node)
        return "reserve_held" if has_shape else "fragmented"

    def preempting(self, request: Request, holding: Holding, gpus: int) -> Why:
        """Why a request waits that was promised its GPUs."""
        leaving = [
            lease
            for lease in self._snapshot.running.in_pool(holding.pool)
            if lease.notice_until is not None and lease.notice_for in (request.id, None)
        ]
        until = max((lease.notice_until or 0.0 for lease in leaving), default=self._snapshot.now)
        within = words.in_at_most(until - self._snapshot.now)
        starts = f", which starts when {words.stopped(leaving)}, {within}" if leaving else ""
        needs = self._needs(request, holding.pool)
        message = f"{needs}; {words.counted(gpus)} promised to this run{starts}."
        ids = tuple(sorted(lease.id for lease in leaving))
        return Why(holding.pool, gpus, "preempting", message, ids)

    def awaiting_approval(self, preemption: Preemption) -> Why:
        """Why a request waits whose victims a person has to approve of."""
        request, promise = preemption.request, preemption.promise
        leaving = [victim.lease for victim in preemption.victims]
        message = (
            f"{self._needs(request, promise.pool)}; a person has to approve that {words.stopped(leaving)} "
            f"for this run, by the rule {preemption.kind}."
        )
        ids = tuple(sorted(victim.lease.id for victim in preemption.victims))
        return Why(promise.pool, promise.gpus, "approval", message, ids)

    def _fits_uncordoned(self, request: Request, holding: Holding, gpus: int) -> bool:
        if self._uncordoned is None:
            return False
        holding = self._uncordoned.accounts.account(holding.account, holding.pool)
        return self._uncordoned.fits_but_for_what_is_kept(request, holding, gpus)

    def _blockers(self, request: Request, holding: Holding, reason: Reason) -> tuple[str, ...]:
        snapshot = self._snapshot
        if reason in BY_RULE:
            return (str(holding.account),)
        if reason == "reserve_held":
            return tuple(str(account) for account, _ in snapshot.accounts.keepers(holding))
        if reason == "lower_priority":
            kept = self._kept_from(request, holding)
            return tuple(dict.fromkeys(each.request.id for each in kept))
        return ()

    def _facts(self, request: Request, holding: Holding, reason: Reason) -> str:
        used = words.used(holding)
        if reason in ("quota_exhausted", "paused"):
            rights = self._snapshot.rights(request, holding.pool)
            return f"{used}, and {(rights and rights.barred) or NO_BORROWING}"
        if reason == "borrow_limit":
            return words.borrow_limit(holding.limited_by(request.sizes[-1]))
        if reason == "ceiling":
            exceeded = self._snapshot.ceilings.exceeded(request, holding.pool, request.sizes[-1])
            assert exceeded is not None
            return words.ceiling_reached(request.team, exceeded)
        facts = self._what_is_free(request, holding.pool)
        if reason == "lower_priority":
            kept = self._what_is_kept(request, holding)
            facts = f"{facts}, but {kept}" if kept else facts
        if reason == "maintenance":
            facts = f"it would start if no node were in maintenance: {facts}"
        keepers = self._snapshot.accounts.keepers(holding)
        if keepers:
            facts = f"{facts}; {words.held_back(keepers)}"
        return f"{facts}. {used}".replace(". the rest of ", ". The rest of ")

    def _kept_from(self, request: Request, holding: Holding) -> list[Reservation | Kept]:
        """What of the pool, or of the account's quota, is reserved or promised and blocks it."""
        snapshot, gpus = self._snapshot, request.sizes[-1]
        asker = snapshot.asker(request, holding, gpus)
        if asker is None:
            return []
        reserved = [
            each
            for each in self._reserved.get(holding.pool, ())
            if snapshot.calendar.is_in_the_way(each, asker)
        ]
        claim = snapshot.calendar.claims_quota_from(asker)
        claimed = [claim.reservation] if claim is not None and claim.of_quota else []
        room = snapshot.room(holding.pool)
        fits = gpus <= snapshot.left_for(asker) and room.place(gpus, request.gpus_per_node)
        promised = [] if fits else snapshot.promises.in_pool(holding.pool)
        return [*reserved, *claimed, *(kept for kept in promised if kept.request is not request)]

    def _what_is_kept(self, request: Request, holding: Holding) -> str:
        """For whom, and by when they start."""
        said = [self._keeps(each, holding) for each in self._kept_from(request, holding)]
        return "; ".join((said + self._set_aside(request, holding.pool))[:MOST_NAMED])

    def _keeps(self, kept: Reservation | Kept, holding: Holding) -> str:
        owner = words.owner(kept.request)
        if isinstance(kept, Kept):
            counted = words.counted(kept.gpus)
            if kept.request.id in self._awaiting:
                return f"{counted} reserved for {owner}, which waits for a person's approval"
            return f"{counted} promised to {owner}"
        counted = words.counted(kept.gpus, f" of the quota of {holding}" if kept.of_quota else "")
        starts = ""
        if kept.at is not None:
            starts = f", which starts {words.in_at_most(kept.at - self._snapshot.now)}"
        return f"{counted} reserved for {owner}{starts}"

    def _set_aside(self, request: Request, pool: str) -> list[str]:
        """What the policy keeps from it, for no other request: the fast lane, and windows to come."""
        said, room, now = [], self._snapshot.room(pool), self._snapshot.now
        length = request.max_duration
        in_lane = room.in_lane(request.sizes[-1], length)
        if room.lane is not None and room.lane_left and not in_lane:
            said.append(words.fast_lane(room.lane_left, room.lane))
        for window in self._snapshot.windows_ahead(pool):
            if window.team == request.team or (length is not None and now + length <= window.start):
                continue
            starts = duration_in_words(window.start - now)
            said.append(
                f"{words.counted(window.gpus)} reserved for a window of {window.team} that begins in "
                f"{starts}, and this run may last longer"
            )
        return said

    def _what_is_free(self, request: Request, pool: str) -> str:
        key = (pool, request.sizes[-1], request.gpus_per_node)
        if key not in self._free:
            room = self._snapshot.room(pool)
            self._free[key] = words.free(self._policy, pool, room, request)
        return self._free[key]

    def _needs(self, request: Request, pool: str) -> str:
        return f"needs {words.asked(request, pool, self._snapshot.room(pool))}"

    def _no_rights(self, request: Request, pool: str) -> str:
        if request.team not in self._policy.teams:
            return self._not_in_policy(request, pool, "team", request.team, self._policy.teams)
        return self._not_in_policy(request, pool, "tier", request.tier, self._policy.tiers)

    def _not_in_policy(
        self, request: Request, pool: str, what: str, name: str, known: Iterable[str]
    ) -> str:
        names = ", ".join(sorted(known))
        needs = self._needs(request, pool)
        return f"{needs}; {what} {name} is not in the policy ({what}s: {names})."
