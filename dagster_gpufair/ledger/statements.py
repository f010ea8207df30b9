"""Saying to either database what SQLAlchemy has no common words for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar, cast

from sqlalchemy import ColumnElement, CursorResult, Delete, Insert, Update, and_
from sqlalchemy.dialects import sqlite
from sqlalchemy.orm import Session

from dagster_gpufair.ledger.tables import Base

if TYPE_CHECKING:
    from sqlalchemy.dialects import postgresql

T = TypeVar("T")

_MOST_IDS = 500
"""Ids in one statement; SQLite before 3.32 takes 999 parameters at most."""


def insert_into(session: Session, table: type[Base]) -> sqlite.Insert | postgresql.Insert:
    """An ``INSERT`` of the session's dialect, which knows ``ON CONFLICT``."""
    if session.get_bind().dialect.name == "postgresql":
        # Imported when needed: it takes a tenth of a second, and SQLite has no use for it.
        from sqlalchemy.dialects import postgresql

        return postgresql.insert(table)
    return sqlite.insert(table)


def changed(session: Session, statement: Insert | Update | Delete) -> int:
    """Execute it, and say how many rows it touched."""
    return cast("CursorResult[Any]", session.execute(statement)).rowcount


def begins_with(session: Session, column: Any, prefix: str) -> ColumnElement[bool]:
    """Whether a name begins exactly so, found in an index whatever the database's collation is."""
    end = f"{prefix}\U0010ffff"
    if session.get_bind().dialect.name == "postgresql":
        return and_(column.op("~>=~")(prefix), column.op("~<~")(end))
    return and_(column >= prefix, column < end)


def chunks(ids: Iterable[T], most: int = _MOST_IDS) -> Iterator[Sequence[T]]:
    """Long lists of ids in pieces that fit a statement."""
    rest = iter(ids)
    while piece := list(islice(rest, most)):
        yield piece
