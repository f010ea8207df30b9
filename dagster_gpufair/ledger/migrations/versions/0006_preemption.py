"""What was stopped and goes on, and what its owner keeps

The part of the revision after ``_since_`` is the first release of the package that knows it.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from dagster_gpufair.ledger.columns import Name

revision = "0006_since_0.5.0"
down_revision = "0005_since_0.4.0"
branch_labels = None
depends_on = None

_REQUESTS = "gpufair_requests"
_LEASES = "gpufair_leases"
_PREEMPTED = "ix_gpufair_requests_preempted"


def upgrade() -> None:
    op.add_column(_REQUESTS, sa.Column("continues", Name(), nullable=True))
    op.create_index(
        _PREEMPTED,
        _REQUESTS,
        ["id"],
        sqlite_where=sa.text("preempted > 0"),
        postgresql_where=sa.text("preempted > 0"),
    )
    op.add_column(_LEASES, sa.Column("kept_until", sa.Double(), nullable=True))


def downgrade() -> None:
    op.drop_column(_LEASES, "kept_until")
    op.drop_index(_PREEMPTED, _REQUESTS)
    op.drop_column(_REQUESTS, "continues")
