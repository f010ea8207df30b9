"""Engines for the ledger: how connections are made and how a transaction begins on each database.

On both databases one writing transaction goes on at a time: SQLite by ``BEGIN IMMEDIATE``, Postgres
by an advisory lock that the transaction holds. Whatever a writer reads is therefore still so when
it commits, no two of them can deadlock, and event ids rise in the order of commits. Readers wait
for no one, and see one moment of the database for as long as their transaction lasts.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import URL, Engine, create_engine, event

ConnectHook = Callable[..., Any]
"""A ``do_connect`` listener, as SQLAlchemy calls it."""

_BUSY_SECONDS = 30
# "gpufair" in ASCII: a lock number that no other program has chosen.
_LOCK = int.from_bytes(b"gpufair", "big")

_BEGIN_READING = {
    "sqlite": ("PRAGMA query_only=ON", "BEGIN"),
    "postgresql": ("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY",),
}
_BEGIN_WRITING = {
    "sqlite": ("PRAGMA query_only=OFF", "BEGIN IMMEDIATE"),
    # A writer that was stopped in mid-transaction must not keep all others out for ever.
    "postgresql": (
        f"SET LOCAL lock_timeout = '{_BUSY_SECONDS}s';"
        f"SET LOCAL idle_in_transaction_session_timeout = '{2 * _BUSY_SECONDS}s';"
        f"SELECT pg_advisory_xact_lock({_LOCK})",
    ),
}


def begin_reading(engine: Engine) -> Sequence[str]:
    """What to execute first in a transaction that only reads."""
    return _BEGIN_READING[engine.dialect.name]


def begin_writing(engine: Engine) -> Sequence[str]:
    """What to execute first in a transaction that writes."""
    return _BEGIN_WRITING[engine.dialect.name]


def new_engine(url: URL, connect_hooks: Sequence[ConnectHook] = ()) -> Engine:
    """An engine with a small pool of its own.

    ``connect_hooks`` are those of the instance's engine: where a cloud gives out passwords for
    minutes, they put the current one in.
    """
    if url.get_backend_name() == "sqlite":
        engine = create_engine(
            url, pool_size=2, max_overflow=8, connect_args={"timeout": _BUSY_SECONDS}
        )
        event.listen(engine, "connect", _prepare_sqlite)
        return engine
    defaults = {"connect_timeout": 10, "fallback_application_name": "gpufair"}
    engine = create_engine(
        url,
        isolation_level="READ COMMITTED",
        pool_size=2,
        max_overflow=8,
        # A connection that a restart of the server has cut is replaced before it is used.
        pool_pre_ping=True,
        connect_args={key: value for key, value in defaults.items() if key not in url.query},
    )
    for hook in connect_hooks:
        event.listen(engine, "do_connect", hook)
    return engine


def _prepare_sqlite(connection: sqlite3.Connection, _record: Any) -> None:
    # The driver begins transactions when it sees fit; here only BEGIN does.
    connection.isolation_level = None
    _use_wal(connection)
    connection.execute("PRAGMA foreign_keys=ON")


def _use_wal(connection: sqlite3.Connection) -> None:
    """Let readers and a writer go on at once; the file stays so.

    When several processes meet a new file, SQLite refuses this at once instead of waiting its turn.
    """
    deadline = time.monotonic() + _BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return
