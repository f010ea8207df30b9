"""Which cards a lease has

The part of the revision after ``_since_`` is the first release of the package that knows it.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005_since_0.4.0"
down_revision = "0004_since_0.4.0"
branch_labels = None
depends_on = None

_LEASES = "gpufair_leases"


def upgrade() -> None:
    op.add_column(_LEASES, sa.Column("cards", sa.JSON(), nullable=True))


def downgrade() -> None:
    op.drop_column(_LEASES, "cards")
