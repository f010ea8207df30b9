"""What a person has switched off for a time, whatever the policy says: preemption, borrowing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy.orm import Session

from dagster_gpufair.ledger import events, status
from dagster_gpufair.policy.models import Pausable

PAUSED = "paused"
"""The key of `status` under which it stands: for each, ``by``, ``reason`` and ``at``."""


def current(session: Session) -> Mapping[Pausable, Mapping[str, Any]]:
    """What is switched off now: by whom, why and since when."""
    return status.get(session, PAUSED) or {}


def pause(session: Session, what: Pausable, by: str, reason: str, at: float) -> bool:
    """Switch it off, from the daemon's next pass on.

    Returns:
        Whether it was on.
    """
    paused = dict(current(session))
    if what in paused:
        return False
    paused[what] = {"by": by, "reason": reason, "at": at}
    status.put(session, PAUSED, paused, at)
    events.append(session, "paused", at, data={"what": what, "by": by, "reason": reason})
    return True


def resume(session: Session, what: Pausable, by: str, reason: str, at: float) -> bool:
    """Switch it on again.

    Returns:
        Whether it was off.
    """
    paused = dict(current(session))
    if paused.pop(what, None) is None:
        return False
    status.put(session, PAUSED, paused, at)
    events.append(session, "resumed", at, data={"what": what, "by": by, "reason": reason})
    return True
