"""The code locations that GPU runs came from."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from dagster_gpufair.ledger.tables import RequestRow


def seen(session: Session) -> set[str]:
    """Those of all requests there ever were."""
    found = session.scalars(select(RequestRow.location).distinct())
    return {location for location in found if location is not None}
