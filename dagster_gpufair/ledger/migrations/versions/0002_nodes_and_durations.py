"""Nodes out of service, and how long jobs last

The part of the revision after ``_since_`` is the first release of the package that knows it.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002_since_0.2.0"
down_revision = "0001_since_0.1.0"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "gpufair_cordoned_nodes",
        sa.Column("pool", sa.Text(), nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("cordoned_at", sa.Double(), nullable=False),
        sa.Column("cordoned_by", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("pool", "node", name="pk_gpufair_cordoned_nodes"),
    )
    op.create_index(
        "ix_gpufair_requests_released",
        "gpufair_requests",
        ["team", "job_name", "finished_at"],
        sqlite_where=sa.text("state = 'released'"),
        postgresql_where=sa.text("state = 'released'"),
    )


def downgrade() -> None:
    op.drop_index("ix_gpufair_requests_released", "gpufair_requests")
    op.drop_table("gpufair_cordoned_nodes")
