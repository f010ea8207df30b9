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
from dagster_gpufair.scheduling.accounts import Holding, Rights, account_of
from dagster_gpufair.scheduling.model import Request
from dagster_gpufair.scheduling.snapshot import Snapshot

NO_BORROWING = "its borrow_limit is 0"
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
        self._found: dict[tuple[object, ...], Why] = {}
        self._free: dict[tuple[str, int, int | None], str] = {}

    def why(self, request: Request) -> Why:
        """Why the request waits."""
        rights = self._snapshot.rights(request)
        account, sizes, per_node = account_of(request), request.sizes, request.gpus_per_node
        key = (account, request.pools, sizes, per_node, rights or request.tier)
        why = self._found.get(key)
        if why is None:
            why = self._found[key] = self._find(request, rights)
        return why

    def _find(self, request: Request, rights: Rights | None) -> Why:
        gpus, pools = request.sizes[-1], self._snapshot.pools(request)
        if not pools:
            pool = request.pools[0] if request.pools else ""
            return Why(pool, gpus, "insufficient_gpus", self._no_pool(request, pool))
        account = account_of(request)
        holdings = [self._snapshot.accounts.holding(account, pool) for pool in pools]
        if rights is None:
            return Why(pools[0], gpus, "quota_exhausted", self._no_rights(request, holdings[0]))
        reasons = [self._reason(request, rights, holding, gpus) for holding in holdings]
        at = next((at for at, reason in enumerate(reasons) if reason not in BY_RULE), 0)
        facts = self._facts(request, rights, holdings[at], reasons[at])
        message = f"{self._needs(request, pools[at])}; {facts}."
        others = [
            f"{pool} ({reason})"
            for pool, reason in zip(pools, reasons, strict=True)
            if pool != pools[at]
        ]
        if others:
            message = f"{message} Nor can it start in {', '.join(others)}."
        return Why(pools[at], gpus, reasons[at], message)

    def _reason(self, request: Request, rights: Rights, holding: Holding, gpus: int) -> str:
        if holding.allowed_class(gpus, rights) is None:
            barred = rights.barred or holding.borrow_limit == 0
            return "quota_exhausted" if barred else "borrow_limit"
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

    def _facts(self, request: Request, rights: Rights, holding: Holding, reason: str) -> str:
        used = wording.used(holding)
        if reason == "quota_exhausted":
            return f"{used}, and {rights.barred or NO_BORROWING}"
        if reason == "borrow_limit":
            return f"{used}, and may borrow {format_gpus(holding.borrow_limit or 0)} at most"
        facts = self._what_is_free(request, holding.pool)
        if reason == "maintenance":
            facts = f"it would start but for nodes in maintenance. {facts}"
        keepers = self._snapshot.accounts.keepers(holding)
        if keepers:
            facts = f"{facts}; {wording.held_back(keepers)}"
        return f"{facts}. {used}"

    def _what_is_free(self, request: Request, pool: str) -> str:
        key = (pool, request.sizes[-1], request.gpus_per_node)
        if key not in self._free:
            room = self._snapshot.room(pool)
            self._free[key] = wording.free(self._policy, pool, room, request)
        return self._free[key]

    def _needs(self, request: Request, pool: str) -> str:
        return f"needs {wording.asked(request, pool, self._snapshot.room(pool).nodes)}"

    def _no_pool(self, request: Request, pool: str) -> str:
        known = wording.in_policy(self._policy.pools)
        return f"{self._needs(request, pool)}; the pool is not in the policy {known}."

    def _no_rights(self, request: Request, holding: Holding) -> str:
        what, name, known = "team", request.team, wording.in_policy(self._policy.teams)
        if request.team in self._policy.teams:
            what, name, known = "tier", request.tier, wording.in_policy(self._policy.tiers)
        return f"{self._needs(request, holding.pool)}; {what} {name} is not in the policy {known}."
