"""Alembic runs this to migrate the ledger; `schema.upgrade` hands it the connection."""

from alembic import context

from dagster_gpufair.ledger.schema import VERSION_TABLE
from dagster_gpufair.ledger.tables import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    version_table=VERSION_TABLE,
)
with context.begin_transaction():
    context.run_migrations()
