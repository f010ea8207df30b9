"""States of leases, requests of steps, promises, approvals, and clocks that may jump

The part of the revision after ``_since_`` is the first release of the package that knows it.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003_since_0.3.0"
down_revision = "0002_since_0.2.0"
branch_labels = None
depends_on = None

_serial = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_untold = sa.text("told_state IS NOT NULL AND told_state <> state")
_proposed = sa.text("state = 'proposed'")


def upgrade() -> None:
    _requests()
    _leases()
    op.create_index("ix_gpufair_events_at", "gpufair_events", ["at"])
    # A turn of the old kind is in another time; it is free.
    op.add_column(
        "gpufair_writer",
        sa.Column("clock", sa.Text(), nullable=False, server_default=sa.text("''")),
    )
    op.execute("UPDATE gpufair_writer SET holder = NULL, expires_at = 0")
    op.create_table(
        "gpufair_promises",
        sa.Column("request_id", sa.Text(), nullable=False),
        sa.Column("pool", sa.Text(), nullable=False),
        sa.Column("gpus", sa.BigInteger(), nullable=False),
        sa.Column("nodes", sa.JSON(), nullable=False),
        sa.Column("made_at", sa.Double(), nullable=False),
        sa.Column("policy_version", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(
            ["request_id"], ["gpufair_requests.id"], name="fk_gpufair_promises_request_id"
        ),
        sa.PrimaryKeyConstraint("request_id", name="pk_gpufair_promises"),
    )
    names = ("day", "team", "project", "tier", "kind", "pool", "ended_as")
    op.create_table(
        "gpufair_past_use",
        *(sa.Column(name, sa.Text(), nullable=False) for name in names),
        sa.Column("requests", sa.BigInteger(), nullable=False),
        sa.Column("gpu_seconds", sa.Double(), nullable=False),
        sa.Column("waited", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint(*names, name="pk_gpufair_past_use"),
    )
    op.create_table(
        "gpufair_approvals",
        sa.Column("id", _serial, nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("request_id", sa.Text(), nullable=False),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("proposed_at", sa.Double(), nullable=False),
        sa.Column("decided_at", sa.Double(), nullable=True),
        sa.Column("decided_by", sa.Text(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(
            ["request_id"], ["gpufair_requests.id"], name="fk_gpufair_approvals_request_id"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_gpufair_approvals"),
        sqlite_autoincrement=True,
    )
    op.create_index(
        "ix_gpufair_approvals_open",
        "gpufair_approvals",
        ["request_id"],
        unique=True,
        sqlite_where=_proposed,
        postgresql_where=_proposed,
    )


def _requests() -> None:
    table = "gpufair_requests"
    op.add_column(
        table, sa.Column("step_key", sa.Text(), nullable=False, server_default=sa.text("''"))
    )
    op.add_column(table, sa.Column("attempt", sa.BigInteger(), nullable=False, server_default="1"))
    op.add_column(table, sa.Column("launched_by", sa.JSON(), nullable=True))
    # What is over has been told, or never will be: before, nobody noted it.
    op.execute(
        f"UPDATE {table} SET told_state = state "
        "WHERE state IN ('released', 'cancelled', 'refused') AND told_state IS NOT NULL"
    )
    op.drop_column(table, "told_at")
    op.drop_index("ix_gpufair_requests_run_id", table)
    op.drop_index("ix_gpufair_requests_team", table)
    op.create_index(
        "ix_gpufair_requests_holder", table, ["run_id", "step_key", "attempt"], unique=True
    )
    op.create_index(
        "ix_gpufair_requests_prefix", table, ["id"], postgresql_ops={"id": "text_pattern_ops"}
    )
    op.create_index("ix_gpufair_requests_finished_at", table, ["finished_at"])
    op.create_index(
        "ix_gpufair_requests_untold",
        table,
        ["finished_at"],
        sqlite_where=_untold,
        postgresql_where=_untold,
    )


def _leases() -> None:
    table = "gpufair_leases"
    for column in (
        sa.Column("step_key", sa.Text(), nullable=False, server_default=sa.text("''")),
        sa.Column("attempt", sa.BigInteger(), nullable=False, server_default="1"),
        sa.Column("state", sa.Text(), nullable=False, server_default="released"),
        sa.Column("devices", sa.JSON(), nullable=True),
        sa.Column("began_at", sa.Double(), nullable=True),
        sa.Column("launch_host", sa.Text(), nullable=True),
        sa.Column("processes", sa.JSON(), nullable=True),
        sa.Column("claimed_at", sa.Double(), nullable=True),
        sa.Column("launched_at", sa.Double(), nullable=True),
        sa.Column("checkpointed_at", sa.Double(), nullable=True),
        sa.Column("term_from", sa.Double(), nullable=True),
        sa.Column("notice_until", sa.Double(), nullable=True),
        sa.Column("notice_for", sa.Text(), nullable=True),
        sa.Column("notice_rule", sa.Text(), nullable=True),
        sa.Column("stop_asked_at", sa.Double(), nullable=True),
        sa.Column("stop_why", sa.Text(), nullable=True),
        sa.Column("stop_tries", sa.BigInteger(), nullable=False, server_default="0"),
        sa.Column("over_at", sa.Double(), nullable=True),
    ):
        op.add_column(table, column)
    op.execute(f"UPDATE {table} SET state = 'recalled' WHERE void")
    op.execute(
        f"UPDATE {table} SET state = 'granted' WHERE released_at IS NULL AND launch_epoch IS NULL"
    )
    # Of those that are open nobody knows how their launch went: it counts as taken, as it did before.
    op.execute(
        f"UPDATE {table} SET state = 'launching', claimed_at = started_at, launched_at = started_at "
        "WHERE released_at IS NULL AND launch_epoch IS NOT NULL"
    )
    op.execute(
        f"UPDATE {table} SET state = 'running', began_at = started_at "
        "WHERE released_at IS NULL AND ungated"
    )
    op.drop_column(table, "void")
    op.create_index("ix_gpufair_leases_released_at", table, ["released_at"])


def downgrade() -> None:
    op.drop_table("gpufair_past_use")
    op.drop_table("gpufair_approvals")
    op.drop_table("gpufair_promises")
    op.drop_column("gpufair_writer", "clock")
    op.drop_index("ix_gpufair_events_at", "gpufair_events")
    leases, requests = "gpufair_leases", "gpufair_requests"
    op.drop_index("ix_gpufair_leases_released_at", leases)
    op.add_column(
        leases, sa.Column("void", sa.Boolean(), nullable=False, server_default=sa.false())
    )
    op.execute(f"UPDATE {leases} SET void = (state = 'recalled')")
    for name in (
        "over_at",
        "stop_tries",
        "stop_why",
        "stop_asked_at",
        "notice_rule",
        "notice_for",
        "notice_until",
        "term_from",
        "checkpointed_at",
        "launched_at",
        "claimed_at",
        "processes",
        "launch_host",
        "began_at",
        "devices",
        "state",
        "attempt",
        "step_key",
    ):
        op.drop_column(leases, name)
    for index in ("untold", "finished_at", "prefix", "holder"):
        op.drop_index(f"ix_gpufair_requests_{index}", requests)
    op.create_index("ix_gpufair_requests_team", requests, ["team"])
    op.create_index("ix_gpufair_requests_run_id", requests, ["run_id"])
    op.add_column(requests, sa.Column("told_at", sa.Double(), nullable=True))
    op.drop_column(requests, "launched_by")
    op.drop_column(requests, "attempt")
    op.drop_column(requests, "step_key")
