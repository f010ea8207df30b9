"""What a run says of its own priority

The part of the revision after ``_since_`` is the first release of the package that knows it.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004_since_0.4.0"
down_revision = "0003_since_0.3.0"
branch_labels = None
depends_on = None

_REQUESTS = "gpufair_requests"


def upgrade() -> None:
    op.add_column(
        _REQUESTS, sa.Column("priority", sa.BigInteger(), nullable=False, server_default="0")
    )


def downgrade() -> None:
    op.drop_column(_REQUESTS, "priority")
