"""Nodes out of service: they take no new work, and what runs on them goes on.

Who took a node out and put it back, when and why, is in the events ``cordoned`` and ``uncordoned``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from dagster_gpufair.ledger import events
from dagster_gpufair.ledger.statements import changed, insert_into
from dagster_gpufair.ledger.tables import CordonedNodeRow


@dataclass(frozen=True, slots=True)
class CordonedNode:
    """A node that takes no new work, and who said so. ``cordoned_at`` in seconds since the epoch."""

    pool: str
    node: str
    cordoned_at: float
    by: str
    reason: str


_COLUMNS = tuple(getattr(CordonedNodeRow, field.name) for field in fields(CordonedNode))


def cordon(session: Session, pool: str, node: str, by: str, reason: str, now: float) -> bool:
    """Take a node out of service.

    Whether there is such a node is for the caller to know: policies change.

    Returns:
        Whether it was in service; one that was not stays out, for the reason given first.
    """
    values = asdict(CordonedNode(pool, node, now, by, reason))
    new = insert_into(session, CordonedNodeRow).values(values).on_conflict_do_nothing()
    if not changed(session, new):
        return False
    data = {"node": node, "by": by, "reason": reason}
    events.append(session, "cordoned", now, pool=pool, data=data)
    return True


def uncordon(session: Session, pool: str, node: str, by: str, now: float) -> bool:
    """Put a node back into service.

    Returns:
        Whether it was out of service.
    """
    gone = (
        delete(CordonedNodeRow)
        .where(CordonedNodeRow.pool == pool, CordonedNodeRow.node == node)
        .execution_options(synchronize_session=False)
    )
    if not changed(session, gone):
        return False
    events.append(session, "uncordoned", now, pool=pool, data={"node": node, "by": by})
    return True


def cordoned(session: Session) -> list[CordonedNode]:
    """All nodes that are out of service, by pool and name."""
    found = [CordonedNode(*row) for row in session.execute(select(*_COLUMNS))]
    return sorted(found, key=lambda each: (each.pool, each.node))


def cordoned_by_pool(session: Session) -> Mapping[str, frozenset[str]]:
    """The names of the nodes out of service in each pool that has some, as the decision wants them."""
    by_pool: dict[str, set[str]] = {}
    for each in cordoned(session):
        by_pool.setdefault(each.pool, set()).add(each.node)
    return {pool: frozenset(nodes) for pool, nodes in by_pool.items()}
