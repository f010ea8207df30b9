"""The last word on something, by key: for what is only true now, such as a daemon's last pass."""

from __future__ import annotations

from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from dagster_gpufair.ledger.statements import insert_into
from dagster_gpufair.ledger.tables import StatusRow

DAEMON = "daemon"
"""The key under which the writer of grants says when it was last there, and where it runs."""
POLICY_FILE = "policy_file"
"""The key under which is said what is wrong with the policy file, if anything."""
ACCRUED = "accrued"
"""The key under which stands up to when what was borrowed has been added up."""
UNCOUNTED = "uncounted"
"""The key under which stands which runs use GPUs that count nowhere, and why: {run id: why}."""


def put(session: Session, key: str, value: Any, at: float) -> None:
    """Say something JSON can hold, instead of what was said under this key before."""
    new = insert_into(session, StatusRow).values(key=key, value=value, updated_at=at)
    session.execute(
        new.on_conflict_do_update(
            index_elements=[StatusRow.key],
            set_={"value": new.excluded.value, "updated_at": new.excluded.updated_at},
        )
    )


def get(session: Session, key: str) -> Any:
    """What was last said; None if nothing was."""
    return session.scalar(select(StatusRow.value).where(StatusRow.key == key))
