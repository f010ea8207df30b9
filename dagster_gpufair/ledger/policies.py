"""Policy versions: every policy that was ever in force, and who adopted it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from sqlalchemy import Select, select
from sqlalchemy.orm import Session

from dagster_gpufair.ledger import events
from dagster_gpufair.ledger.tables import PolicyVersionRow


@dataclass(frozen=True, slots=True)
class PolicyVersion:
    """A policy as it was adopted: ``document`` is its YAML, ``source`` where it came from."""

    version: int
    document: str
    digest: str
    source: str
    adopted_at: float
    adopted_by: str


_COLUMNS = tuple(getattr(PolicyVersionRow, field.name) for field in fields(PolicyVersion))


def in_force(session: Session) -> PolicyVersion | None:
    """The newest version; None before the first was adopted."""
    newest = _read(session, select(*_COLUMNS).order_by(PolicyVersionRow.version.desc()).limit(1))
    return newest[0] if newest else None


def adopt(session: Session, document: str, digest: str, source: str, by: str, at: float) -> int:
    """Put a policy in force, unless it is the newest already (by its digest).

    Returns:
        Its version.
    """
    newest = in_force(session)
    if newest is not None and newest.digest == digest:
        return newest.version
    row = PolicyVersionRow(
        document=document, digest=digest, source=source, adopted_at=at, adopted_by=by
    )
    session.add(row)
    session.flush()
    events.append(
        session,
        "policy",
        at,
        data={"version": row.version, "digest": digest, "source": source, "by": by},
    )
    return row.version


def history(session: Session) -> Sequence[PolicyVersion]:
    """All versions, oldest first."""
    return _read(session, select(*_COLUMNS).order_by(PolicyVersionRow.version))


def _read(session: Session, query: Select[Any]) -> Sequence[PolicyVersion]:
    return [PolicyVersion(*row) for row in session.execute(query)]
