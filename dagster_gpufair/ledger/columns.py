"""Column types that hold any text and any data, the same on SQLite and Postgres.

Postgres cannot store NUL characters and no driver can encode half a surrogate pair; both can be
in a tag. They are replaced on the way in, in comparisons as well, so a row is found by what it was
written with.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from sqlalchemy import JSON, BigInteger, Dialect, Integer, Text
from sqlalchemy.types import TypeDecorator

_LONGEST_NAME = 255
"""Characters, of up to four bytes each: as long as a run's id may be in Dagster's own tables."""
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")

Serial = BigInteger().with_variant(Integer(), "sqlite")
"""An id the database counts up; SQLite does that only for ``INTEGER``."""


def storable_text(text: str) -> str:
    """The text with what a database cannot hold replaced by ``\\N{REPLACEMENT CHARACTER}``."""
    return _UNSTORABLE.sub("\N{REPLACEMENT CHARACTER}", text)


def storable(value: Any) -> Any:
    """The value as JSON can hold it: what JSON has no word for becomes its text."""
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, str):
        return storable_text(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {storable_text(str(key)): storable(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [storable(part) for part in value]
    return storable_text(str(value))


class Words(TypeDecorator[str]):
    """Text of any content and length."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return None if value is None else storable_text(value)


class Name(TypeDecorator[str]):
    """Text that can be part of an index, which Postgres limits to 2.7 kB in all its columns.

    What is longer than any name is cut, with a digest at its end so that it stays itself.
    """

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        if value is None or len(value) <= _LONGEST_NAME:
            return None if value is None else storable_text(value)
        text = storable_text(value)
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        return f"{text[: _LONGEST_NAME - 17]}~{digest}"


class Data(TypeDecorator[Any]):
    """JSON of any content."""

    impl = JSON
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        return storable(value)


class Names(TypeDecorator[tuple[str, ...]]):
    """Names in order, as a JSON list in text: read by the hundred thousand, and mostly the same."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: tuple[str, ...] | None, dialect: Dialect) -> str | None:
        return None if value is None else json.dumps(storable(value), ensure_ascii=False)

    def process_result_value(self, value: str | None, dialect: Dialect) -> tuple[str, ...] | None:
        return None if value is None else _names(value)


@lru_cache(maxsize=1024)
def _names(text: str) -> tuple[str, ...]:
    return tuple(json.loads(text))
