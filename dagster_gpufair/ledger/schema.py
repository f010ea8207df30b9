"""Bringing the tables to the revision this code knows, and refusing to touch newer ones."""

from __future__ import annotations

import re
import threading
from functools import cache
from pathlib import Path

from sqlalchemy import Connection, inspect, text

from dagster_gpufair.ledger.errors import LedgerTooNew
from dagster_gpufair.ledger.tables import PREFIX

VERSION_TABLE = f"{PREFIX}alembic_version"
"""Not ``alembic_version``: that one is Dagster's, in the same database."""

_MIGRATIONS = Path(__file__).parent / "migrations"
_REVISION = re.compile(r'^revision = "(\w[\w.]*)"', re.MULTILINE)
# Alembic's migration context is one per process.
_alembic = threading.Lock()


def is_current(connection: Connection) -> bool:
    """Whether the tables are at the revision this code knows.

    Raises:
        LedgerTooNew: if they are at a revision it does not know.
    """
    known = _revisions()
    found: set[str] = set()
    if inspect(connection).has_table(VERSION_TABLE):
        found = set(connection.scalars(text(f"SELECT version_num FROM {VERSION_TABLE}")))
    unknown = found - set(known)
    if unknown:
        raise LedgerTooNew(_too_new(min(unknown), known[-1]))
    return found == {known[-1]}


def upgrade(connection: Connection, to: str = "head") -> None:
    """Run the missing migrations in the connection's transaction, which the caller commits."""
    # Whoever only reads a ledger that is up to date need not wait for it.
    from alembic import command
    from alembic.config import Config

    config = Config()
    # A percent sign in a path is no interpolation.
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    with _alembic:
        command.upgrade(config, to)


@cache
def _revisions() -> tuple[str, ...]:
    """The revisions this code knows, oldest first: they are numbered."""
    files = (_MIGRATIONS / "versions").glob("[0-9]*.py")
    found = (_REVISION.search(path.read_text(encoding="utf-8")) for path in files)
    return tuple(sorted(each[1] for each in found if each))


def _too_new(found: str, known: str | None) -> str:
    _, _, release = found.partition("_since_")
    needed = f"dagster-gpufair {release} or newer" if release else "a newer dagster-gpufair"
    return (
        f"The GPU ledger's tables are at revision {found}, and this version of the package knows "
        f"them up to {known}. Install {needed} here, as where the tables were changed. "
        "Nothing was changed."
    )
