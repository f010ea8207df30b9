"""The ledger of a Dagster instance: found from the instance, opened once per process.

Transactions are explicit: `Ledger.reading` and `Ledger.writing` yield a SQLAlchemy session in one
transaction, which is committed when a ``writing`` block ends and undone when it raises. Do not open
one ``writing`` block inside another: the inner would wait for the outer.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sqlalchemy import URL, Connection, Engine
from sqlalchemy.exc import (
    DatabaseError,
    InterfaceError,
    InternalError,
    OperationalError,
    ProgrammingError,
    SQLAlchemyError,
    TimeoutError,
)
from sqlalchemy.orm import Session

from dagster_gpufair.ledger import schema
from dagster_gpufair.ledger.engines import ConnectHook, begin_reading, begin_writing, new_engine
from dagster_gpufair.ledger.errors import LedgerError, LedgerTooNew, LedgerUnavailable, NotQueued
from dagster_gpufair.ledger.location import ledger_url, shown

if TYPE_CHECKING:
    from dagster import DagsterInstance

__all__ = ["Ledger", "LedgerError", "LedgerTooNew", "LedgerUnavailable", "NotQueued", "ledger_of"]

_UNAVAILABLE = (OperationalError, InterfaceError, InternalError, TimeoutError)


class Ledger:
    """The ledger in one database. Safe to share between threads, and after a fork."""

    def __init__(self, url: URL, connect_hooks: Sequence[ConnectHook] = ()):
        self.url = url
        self._connect_hooks = connect_hooks
        self._engine = new_engine(url, connect_hooks)
        self._opening = threading.Lock()
        self._opened = False
        _all.add(self)

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """A session that sees one moment of the ledger and cannot change it.

        Raises:
            LedgerUnavailable: when the database cannot be used now, also from inside the block.
            LedgerTooNew: when the tables are newer than this code.
        """
        self.open()
        with (
            self._plainly(),
            self._transaction(begin_reading(self._engine)) as connection,
            Session(connection) as session,
        ):
            yield session

    @contextmanager
    def writing(self) -> Iterator[Session]:
        """A session in the one writing transaction there is at a time; keep it short.

        Raises:
            LedgerUnavailable: when the database cannot be used now, also from inside the block and
                at its end. If the connection broke while committing, either everything or nothing
                was written.
            LedgerTooNew: when the tables are newer than this code.
        """
        self.open()
        with (
            self._plainly(),
            self._transaction(begin_writing(self._engine)) as connection,
            Session(connection) as session,
        ):
            yield session
            session.flush()
            connection.commit()

    def open(self) -> None:
        """Create or migrate the tables if need be. Done by the first transaction of a process.

        Raises:
            LedgerTooNew: when the tables are newer than this code; nothing is changed then.
            LedgerError: when the database user may not create tables.
        """
        if self._opened:
            return
        with self._opening, self._plainly():
            if self._opened:
                return
            try:
                self._bring_up_to_date()
            except ProgrammingError as error:
                raise LedgerError(
                    f"The GPU ledger's tables cannot be created in {shown(self.url)}: "
                    f"{self._reason(error)}"
                ) from error
            self._opened = True

    def dispose(self) -> None:
        """Close the connections that are kept for later; the next transaction makes new ones."""
        self._engine.dispose()

    def _bring_up_to_date(self) -> None:
        with self._transaction(begin_reading(self._engine)) as connection:
            if schema.is_current(connection):
                return
        with self._transaction(begin_writing(self._engine)) as connection:
            # Another process may have done it while this one waited.
            if not schema.is_current(connection):
                schema.upgrade(connection)
            connection.commit()

    @contextmanager
    def _transaction(self, beginning: Sequence[str]) -> Iterator[Connection]:
        with self._engine.connect() as connection:
            for statement in beginning:
                connection.exec_driver_sql(statement)
            yield connection

    @contextmanager
    def _plainly(self) -> Iterator[None]:
        try:
            yield
        except SQLAlchemyError as error:
            # A plain DatabaseError is a damaged file; its other kinds are mistakes in statements.
            if isinstance(error, _UNAVAILABLE) or type(error) is DatabaseError:
                raise LedgerUnavailable(
                    f"The GPU ledger ({shown(self.url)}) cannot be used now: {self._reason(error)}"
                ) from error
            raise

    def _reason(self, error: SQLAlchemyError) -> str:
        """What the database said, in one line and without the password."""
        said = " ".join(str(getattr(error, "orig", None) or error).split())
        for secret in (self.url.password, self.url.query.get("password")):
            if secret:
                said = said.replace(str(secret), "***")
        return said

    def _after_fork(self) -> None:
        self._opening = threading.Lock()
        # Closing the parent's connections from here would end them for the parent too.
        _of_the_parent.append(self._engine)
        self._engine = new_engine(self.url, self._connect_hooks)


_all: weakref.WeakSet[Ledger] = weakref.WeakSet()
_by_url: dict[URL, Ledger] = {}
_by_instance: weakref.WeakKeyDictionary[DagsterInstance, Ledger] = weakref.WeakKeyDictionary()
_lock = threading.Lock()
_of_the_parent: list[Engine] = []


def ledger_of(instance: DagsterInstance) -> Ledger:
    """The ledger in the database of this instance: the same object for the same database.

    Raises:
        LedgerError: if the instance keeps its runs in memory, or in another kind of database.
        LedgerUnavailable: if the run storage cannot be reached.
    """
    with _lock:
        known = _by_instance.get(instance)
    if known is not None:
        return known
    connect = getattr(instance.run_storage, "connect", None)
    if connect is None:
        raise LedgerError(
            "dagster-gpufair keeps its ledger where Dagster keeps its runs, in SQLite or Postgres; "
            f"{type(instance.run_storage).__name__} is neither."
        )
    try:
        with connect() as connection:
            engine = connection.engine
    except Exception as error:
        raise LedgerUnavailable(
            "The Dagster instance's run storage, where the GPU ledger is, cannot be reached."
        ) from error
    url = ledger_url(engine.url)
    with _lock:
        if url not in _by_url:
            _by_url[url] = Ledger(url, tuple(engine.dialect.dispatch.do_connect))
        ledger = _by_instance[instance] = _by_url[url]
    return ledger


def _after_fork_in_child() -> None:
    global _lock
    _lock = threading.Lock()
    for ledger in _all:
        ledger._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
