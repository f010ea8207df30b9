"""Ledgers of their own, on both databases, without a Dagster instance around them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import URL

from dagster_gpufair.ledger.connect import Ledger


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> URL:
    """An empty database; in Postgres a schema of its own, which is made in no time."""
    if request.param == "sqlite":
        return URL.create("sqlite", database=str(tmp_path / "gpufair.db"))
    postgres: Any = request.getfixturevalue("postgres")
    return postgres.new_schema()


@pytest.fixture
def ledger(url: URL) -> Iterator[Ledger]:
    """A ledger in an empty database."""
    ledger = Ledger(url)
    yield ledger
    ledger.dispose()
