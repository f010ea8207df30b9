"""Why a request waits: exactly one reason, and a sentence with its numbers.

It is judged by the least that the request accepts, in the first pool of its list in which only space
is missing; if the rules allow it in none of them, in the first that is in the policy. There, the
first of these that holds:

- ``quota_exhausted``: it would be over quota, and borrowing is off or not allowed for it
- ``borrow_limit``: its account would borrow more than it may
- ``maintenance``: it would start but for nodes that take nothing new
- ``insufficient_gpus``: fewer GPUs are free than it needs
- ``fragmented``: enough are free, but the nodes cannot give the shape
- ``reserve_held``: enough are free, but some of them are held back for others
"""

from __future__ import annotations

from typing import NamedTuple

from dagster_gpufair.policy.quantities import format_gpus
from dagster_gpufair.scheduling import wording
from dagster_gpufair.scheduling.accounts import Holding, account_of
from dagster_gpufair.scheduling.model import Class, Request
from dagster_gpufair.scheduling.snapshot import Snapshot

BY_RULE = ("quota_exhausted", "borrow_limit")


class Why(NamedTuple):
    """Where a request stands in line, for how many GPUs, and what keeps it from starting there."""

    pool: str
    gpus: int
    reason: str
    message: str


class Reasons:
    """Reasons once a pass's starts are known. ``uncordoned`` is that moment with all nodes ready."""

    def __init__(self, snapshot: Snapshot, uncordoned: Snapshot | None) -> None:
        self._snapshot = snapshot
        self._policy = snapshot.policy
        self._uncordoned = uncordoned

    def why(self, request: Request, blocked: tuple[str, str] | None = None) -> Why:
        """Why the request waits. What is blocked from outside keeps the reason it came with."""
        pools = [pool for pool in dict.fromkeys(request.pools) if pool in self._policy.pools]
        if not pools:
            return self._nowhere(request, blocked)
        account, gpus = account_of(request), request.sizes[-1]
        holdings = [self._snapshot.accounts.holding(account, pool) for pool in pools]
        reasons = [self._reason(request, holding, gpus) for holding in holdings]
        at = next((at for at, reason in enumerate(reasons) if reason not in BY_RULE), 0)
        reason, message = blocked or (reasons[at], self._message(request, holdings, reasons, at))
        return Why(pools[at], gpus, reason, message)

    def _nowhere(self, request: Request, blocked: tuple[str, str] | None) -> Why:
        pool = request.pools[0] if request.pools else ""
        known = wording.in_policy(self._policy.pools)
        message = (
            f"needs {wording.asked(request, pool, None)}; the policy has no such pool {known}."
        )
        reason, message = blocked or ("insufficient_gpus", message)
        return Why(pool, request.sizes[-1], reason, message)

    def _reason(self, request: Request, holding: Holding, gpus: int) -> str:
        tier = self._policy.tiers.get(request.tier)
        if tier is None or request.team not in self._policy.teams:
            return "quota_exhausted"
        if holding.class_of(gpus, urgent=tier.may_preempt) is Class.BORROWING:
            if wording.no_borrowing(self._policy, request, holding) is not None:
                return "quota_exhausted"
            if not holding.within_borrow_limit(gpus):
                return "borrow_limit"
        if self._fits_uncordoned(request, holding, gpus):
            return "maintenance"
        room = self._snapshot.room(holding.pool)
        if gpus > room.free:
            return "insufficient_gpus"
        return "fragmented" if room.place(gpus, request.gpus_per_node) is None else "reserve_held"

    def _fits_uncordoned(self, request: Request, holding: Holding, gpus: int) -> bool:
        if self._uncordoned is None:
            return False
        holding = self._uncordoned.accounts.holding(holding.account, holding.pool)
        return self._uncordoned.place(holding, gpus, request.gpus_per_node) is not None

    def _message(
        self, request: Request, holdings: list[Holding], reasons: list[str], at: int
    ) -> str:
        holding, reason = holdings[at], reasons[at]
        nodes = self._snapshot.room(holding.pool).nodes
        sentence = (
            f"needs {wording.asked(request, holding.pool, nodes)}; "
            f"{self._facts(request, holding, reason)}."
        )
        others = [
            f"{other.pool} ({its})"
            for other, its in zip(holdings, reasons, strict=True)
            if other is not holding
        ]
        return f"{sentence} Nor can it start in {', '.join(others)}." if others else sentence

    def _facts(self, request: Request, holding: Holding, reason: str) -> str:
        used = wording.used(holding)
        if reason == "quota_exhausted":
            return self._no_quota(request, holding, used)
        if reason == "borrow_limit":
            return f"{used}, and may borrow {format_gpus(holding.borrow_limit or 0)} at most"
        room = self._snapshot.room(holding.pool)
        facts = wording.free(self._policy, holding.pool, room, request)
        if reason == "maintenance":
            facts = f"it would start but for nodes in maintenance. {facts}"
        keepers = self._snapshot.accounts.keepers(holding)
        if keepers:
            facts = f"{facts}; {wording.held_back_for(keepers)}"
        return f"{facts}. {used}"

    def _no_quota(self, request: Request, holding: Holding, used: str) -> str:
        if request.team not in self._policy.teams:
            return (
                f"team {request.team} is not in the policy {wording.in_policy(self._policy.teams)}"
            )
        if request.tier not in self._policy.tiers:
            return (
                f"tier {request.tier} is not in the policy {wording.in_policy(self._policy.tiers)}"
            )
        return f"{used}, and {wording.no_borrowing(self._policy, request, holding)}"
