"""What an account uses of its quota, in words."""

from __future__ import annotations

from dagster_gpufair.policy.quantities import format_gpus
from dagster_gpufair.scheduling.accounts.holding import Holding


def quota_use(holding: Holding) -> str:
    """``nlp uses 6 of its quota of 8``, ``vision uses its quota of 6 and 2 borrowed``."""
    quota = format_gpus(holding.quota)
    if not holding.quota:
        borrowed = f" and has borrowed {format_gpus(holding.use)}" if holding.use else ""
        return f"{holding} has no quota{borrowed}"
    if holding.overage:
        return f"{holding} uses its quota of {quota} and {format_gpus(holding.overage)} borrowed"
    used = format_gpus(holding.use) if holding.use else "none"
    return f"{holding} uses {used} of its quota of {quota}"
