"""First tables

The part of the revision after ``_since_`` is the first release of the package that knows it: an
older release reads it there, and tells people what to install.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001_since_0.1.0"
down_revision = None
branch_labels = None
depends_on = None

# Postgres counts in 64 bits; SQLite counts up only what is declared INTEGER.
_serial = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "gpufair_policy_versions",
        sa.Column("version", _serial, nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("adopted_at", sa.Double(), nullable=False),
        sa.Column("adopted_by", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("version", name="pk_gpufair_policy_versions"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "gpufair_requests",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("team", sa.Text(), nullable=False),
        sa.Column("tier", sa.Text(), nullable=False),
        sa.Column("pools", sa.Text(), nullable=False),
        sa.Column("gpus", sa.BigInteger(), nullable=False),
        sa.Column("submitted_at", sa.Double(), nullable=False),
        sa.Column("job_name", sa.Text(), nullable=False),
        sa.Column("location", sa.Text(), nullable=True),
        sa.Column("project", sa.Text(), nullable=True),
        sa.Column("kind", sa.Text(), nullable=True),
        sa.Column("source", sa.Text(), nullable=True),
        sa.Column("min_gpus", sa.BigInteger(), nullable=True),
        sa.Column("gpus_per_node", sa.BigInteger(), nullable=True),
        sa.Column("max_duration", sa.Double(), nullable=True),
        sa.Column("cpus", sa.Double(), nullable=False),
        sa.Column("memory_gib", sa.Double(), nullable=False),
        sa.Column("preempted", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("policy_version", sa.BigInteger(), nullable=True),
        sa.Column("blocked_reason", sa.Text(), nullable=True),
        sa.Column("blocked_message", sa.Text(), nullable=True),
        sa.Column("told_state", sa.Text(), nullable=True),
        sa.Column("told_reason", sa.Text(), nullable=True),
        sa.Column("told_at", sa.Double(), nullable=True),
        sa.Column("finished_at", sa.Double(), nullable=True),
        sa.Column("refusal_code", sa.Text(), nullable=True),
        sa.Column("refusal_message", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_gpufair_requests"),
    )
    op.create_index("ix_gpufair_requests_run_id", "gpufair_requests", ["run_id"])
    op.create_index("ix_gpufair_requests_team", "gpufair_requests", ["team"])
    op.create_index("ix_gpufair_requests_state", "gpufair_requests", ["state"])
    op.create_table(
        "gpufair_leases",
        sa.Column("id", _serial, nullable=False),
        sa.Column("request_id", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("team", sa.Text(), nullable=False),
        sa.Column("project", sa.Text(), nullable=True),
        sa.Column("tier", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=True),
        sa.Column("source", sa.Text(), nullable=True),
        sa.Column("pool", sa.Text(), nullable=False),
        sa.Column("gpus", sa.BigInteger(), nullable=False),
        sa.Column("nodes", sa.JSON(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("max_duration", sa.Double(), nullable=True),
        sa.Column("class", sa.Text(), nullable=True),
        sa.Column("policy_version", sa.BigInteger(), nullable=True),
        sa.Column("ungated", sa.Boolean(), nullable=False),
        sa.Column("void", sa.Boolean(), nullable=False),
        sa.Column("launch_epoch", sa.BigInteger(), nullable=True),
        sa.Column("warned_at", sa.Double(), nullable=True),
        sa.Column("released_at", sa.Double(), nullable=True),
        sa.Column("release_reason", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(
            ["request_id"], ["gpufair_requests.id"], name="fk_gpufair_leases_request_id"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_gpufair_leases"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_gpufair_leases_request_id", "gpufair_leases", ["request_id"])
    op.create_index("ix_gpufair_leases_run_id", "gpufair_leases", ["run_id"])
    op.create_index(
        "ix_gpufair_leases_team_source_started_at",
        "gpufair_leases",
        ["team", "source", "started_at"],
    )
    op.create_index(
        "ix_gpufair_leases_open",
        "gpufair_leases",
        ["request_id"],
        unique=True,
        sqlite_where=sa.text("released_at IS NULL"),
        postgresql_where=sa.text("released_at IS NULL"),
    )
    op.create_table(
        "gpufair_events",
        sa.Column("id", _serial, nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=True),
        sa.Column("team", sa.Text(), nullable=True),
        sa.Column("pool", sa.Text(), nullable=True),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_gpufair_events"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_gpufair_events_run_id", "gpufair_events", ["run_id"])
    op.create_table(
        "gpufair_borrowed_use",
        sa.Column("team", sa.Text(), nullable=False),
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("pool", sa.Text(), nullable=False),
        sa.Column("gpu_hours", sa.Double(), nullable=False),
        sa.Column("as_of", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("team", "project", "pool", name="pk_gpufair_borrowed_use"),
    )
    op.create_table(
        "gpufair_writer",
        sa.Column("id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("holder", sa.JSON(), nullable=True),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_gpufair_writer"),
    )
    op.create_table(
        "gpufair_status",
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("value", sa.JSON(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_gpufair_status"),
    )


def downgrade() -> None:
    for table in (
        "status",
        "writer",
        "borrowed_use",
        "events",
        "leases",
        "requests",
        "policy_versions",
    ):
        op.drop_table(f"gpufair_{table}")
