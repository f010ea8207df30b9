"""Bringing the tables to the revision this code knows, and refusing to touch newer ones."""

from __future__ import annotations

import threading
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

from dagster_gpufair.ledger.errors import LedgerTooNew
from dagster_gpufair.ledger.tables import PREFIX

VERSION_TABLE = f"{PREFIX}alembic_version"
"""Not ``alembic_version``: that one is Dagster's, in the same database."""

_MIGRATIONS = Path(__file__).parent / "migrations"
# Alembic's migration context is one per process.
_alembic = threading.Lock()


def is_current(connection: Connection) -> bool:
    """Whether the tables are at the revision this code knows.

    Raises:
        LedgerTooNew: if they are at a revision it does not know.
    """
    options = {"version_table": VERSION_TABLE}
    found = set(MigrationContext.configure(connection, opts=options).get_current_heads())
    scripts = ScriptDirectory(str(_MIGRATIONS))
    unknown = found - {script.revision for script in scripts.walk_revisions()}
    if unknown:
        raise LedgerTooNew(_too_new(min(unknown), scripts.get_current_head()))
    return found == {scripts.get_current_head()}


def upgrade(connection: Connection, to: str = "head") -> None:
    """Run the missing migrations in the connection's transaction, which the caller commits."""
    config = Config()
    # A percent sign in a path is no interpolation.
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    with _alembic:
        command.upgrade(config, to)


def _too_new(found: str, known: str | None) -> str:
    _, _, release = found.partition("_since_")
    needed = f"dagster-gpufair {release} or newer" if release else "a newer dagster-gpufair"
    return (
        f"The GPU ledger's tables are at revision {found}, and this version of the package knows "
        f"them up to {known}. Install {needed} here, as where the tables were changed. "
        "Nothing was changed."
    )
