"""Where a Dagster instance's ledger is, from where its runs are."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import URL

from dagster_gpufair.ledger.errors import LedgerError

FILE_NAME = "gpufair.db"
# Dagster keeps its run file in the first and reads every database file of the second as a run's.
_DAGSTERS_OWN = ("history", "runs")


def ledger_url(runs: URL) -> URL:
    """The ledger's database, given that of the instance's run storage.

    In Postgres it is the same database, reached the same way. SQLite allows one writer a file, so
    there the ledger is a file of its own.

    Raises:
        LedgerError: if the instance keeps its runs in memory, or in another kind of database.
    """
    kind = runs.get_backend_name()
    if kind == "postgresql":
        return runs
    if kind != "sqlite":
        raise LedgerError(
            "dagster-gpufair keeps its ledger in SQLite or Postgres; this Dagster instance keeps "
            f"its runs in {kind}."
        )
    if runs.database in (None, "", ":memory:") or runs.query.get("mode") == "memory":
        raise LedgerError(
            "This Dagster instance keeps its runs in memory, so GPU requests could not outlive the "
            "process. A persistent instance is needed: set DAGSTER_HOME, or storage in "
            "dagster.yaml."
        )
    folder = Path(str(runs.database)).parent
    while folder.name in _DAGSTERS_OWN:
        folder = folder.parent
    return URL.create("sqlite", database=str(folder / FILE_NAME))


def shown(url: URL) -> str:
    """The database in words, without user or password."""
    if url.get_backend_name() == "sqlite":
        return f"the file {url.database}"
    host = url.host or url.query.get("host") or "the local socket"
    return f"Postgres database {url.database} at {host}"
