"""Finding and opening the ledger of an instance: first start, upgrades, and what stands in the way."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from dagster import DagsterInstance
from ledger_processes import grant_when_told, running
from ledger_samples import asked
from sqlalchemy import URL, create_engine, event, inspect, make_url, text
from sqlalchemy.pool import NullPool

from dagster_gpufair.ledger import leases, lifecycle, nodes, requests, schema
from dagster_gpufair.ledger.connect import (
    Ledger,
    LedgerError,
    LedgerTooNew,
    LedgerUnavailable,
    ledger_of,
)
from dagster_gpufair.ledger.location import ledger_url
from dagster_gpufair.ledger.tables import PREFIX, Base
from dagster_gpufair.scheduling.model import Class

OLDEST, NEWEST = "0001_since_0.1.0", "0006_since_0.5.0"
NEWER = "0007_since_2.5.0"


def tables(url: URL) -> dict[str, list[Any]]:
    """Everything that is in a database, by table."""
    with create_engine(url, poolclass=NullPool).connect() as connection:
        return {
            name: connection.execute(text(f'SELECT * FROM "{name}"')).all()
            for name in sorted(inspect(connection).get_table_names())
        }


def test_five_processes_that_start_together_on_a_new_instance(url: URL) -> None:
    with ExitStack() as stack:
        pipes = [stack.enter_context(running(grant_when_told, url))[1] for _ in range(5)]
        assert [pipe.recv() for pipe in pipes] == ["ready"] * 5
        for pipe in pipes:
            pipe.send("go")
        answers = sorted(pipe.recv() for pipe in pipes)
    assert answers == ["granted", *["not queued"] * 4]
    found = tables(url)
    assert len(found["gpufair_alembic_version"]) == 1
    assert len(found["gpufair_leases"]) == 1


def test_dagsters_own_tables_stay_as_they_are(instance: DagsterInstance) -> None:
    with instance.run_storage.connect() as connection:
        runs = connection.engine.url
    before = tables(runs)
    ledger = ledger_of(instance)
    with ledger.writing() as session:
        lifecycle.submit(session, asked())
    after = tables(runs)
    assert {name: rows for name, rows in after.items() if not name.startswith(PREFIX)} == before
    assert {name for name in tables(ledger.url) if name.startswith(PREFIX)} == {
        *Base.metadata.tables,
        schema.VERSION_TABLE,
    }


def test_the_ledger_of_sqlite_is_a_file_beside_the_history(tmp_path: Path) -> None:
    (tmp_path / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    with DagsterInstance.from_config(str(tmp_path)) as instance:
        ledger = ledger_of(instance)
        ledger.open()
        assert ledger.url.database == str(tmp_path / "gpufair.db")
        assert (tmp_path / "gpufair.db").exists()
        assert ledger_of(instance) is ledger
        ledger.dispose()


@pytest.mark.parametrize(
    ("runs", "beside"),
    [
        ("/home/dagster/history/runs.db", "/home/dagster"),
        ("/data/storage/runs.db", "/data/storage"),
        ("/data/runs/runs.db", "/data"),
        ("/data/history/runs/runs.db", "/data"),
    ],
)
def test_the_ledger_is_never_where_dagster_looks_for_files_of_its_own(
    runs: str, beside: str
) -> None:
    url = ledger_url(URL.create("sqlite", database=runs))
    assert url.database == str(Path(beside) / "gpufair.db")


def test_an_instance_in_memory_is_refused() -> None:
    with (
        DagsterInstance.ephemeral() as instance,
        pytest.raises(LedgerError, match="persistent instance is needed"),
    ):
        ledger_of(instance)


def test_a_database_we_do_not_know_is_refused() -> None:
    with pytest.raises(LedgerError, match="its runs in mysql"):
        ledger_url(make_url("mysql+mysqlconnector://u:secret@db/dagster"))


@pytest.mark.parametrize(
    "written",
    [
        "postgresql://us%40er:p%2Fa%3Ass@db:6432/dagster",
        "postgresql://user:pass@/dagster?host=/var/run/postgresql",
        "postgresql://user@db/dagster?sslmode=require&options=-c%20search_path%3Dgovernance",
    ],
)
def test_a_postgres_url_is_kept_in_all_its_parts(written: str) -> None:
    assert ledger_url(make_url(written)) == make_url(written)


def test_the_migrations_make_the_tables_of_the_models(ledger: Ledger) -> None:
    with ledger.reading() as session:
        context = MigrationContext.configure(
            session.connection(),
            opts={
                "version_table": schema.VERSION_TABLE,
                "include_name": lambda name, type_, _: type_ != "table" or name.startswith(PREFIX),
                "compare_type": True,
                "compare_server_default": True,
            },
        )
        assert compare_metadata(context, Base.metadata) == []


def test_each_revision_names_the_release_that_knows_it() -> None:
    scripts = ScriptDirectory(str(Path(schema.__file__).parent / "migrations"))
    for script in scripts.walk_revisions():
        assert "_since_" in script.revision
        assert len(script.revision) <= 32, "Alembic's own column holds no more"


def test_the_tables_of_an_older_release_are_brought_up_to_date(url: URL) -> None:
    request = (
        "INSERT INTO gpufair_requests (id, run_id, team, tier, pools, gpus, submitted_at, job_name, "
        "cpus, memory_gib, preempted, state) VALUES "
        """('run-1', 'run-1', 'nlp', 'standard', '["h100"]', 8000, 1000, 'train', 0, 0, 0, 'granted')"""
    )
    lease = (
        "INSERT INTO gpufair_leases (request_id, run_id, team, tier, pool, gpus, nodes, started_at, "
        "class, ungated, void) VALUES "
        "('run-1', 'run-1', 'nlp', 'standard', 'h100', 8000, '{}', 1001, 'guaranteed', false, false)"
    )
    with create_engine(url, poolclass=NullPool).begin() as connection:
        schema.upgrade(connection, OLDEST)
        connection.execute(text(request))
        connection.execute(text(lease))

    ledger = Ledger(url)
    with ledger.writing() as session:
        (held,) = leases.open_leases(session)
        assert (held.request_id, held.class_) == ("run-1", Class.GUARANTEED)
        assert nodes.cordon(session, "h100", "h1", "ana", "fan", 1002.0)
    ledger.dispose()
    (version,) = tables(url)[schema.VERSION_TABLE]
    assert version == (NEWEST,)


def test_tables_of_a_newer_release_are_left_alone(url: URL) -> None:
    first = Ledger(url)
    with first.writing() as session:
        lifecycle.submit(session, asked())
        session.execute(text(f"UPDATE {schema.VERSION_TABLE} SET version_num = '{NEWER}'"))
    first.dispose()
    before = tables(url)

    older = Ledger(url)
    for transaction in (older.reading, older.writing):
        with pytest.raises(LedgerTooNew) as refused, transaction():
            pass
        assert NEWER in str(refused.value)
        assert "dagster-gpufair 2.5.0 or newer" in str(refused.value)
        assert "Nothing was changed" in str(refused.value)
    assert tables(url) == before

    with create_engine(url, poolclass=NullPool).begin() as connection:
        connection.execute(text(f"UPDATE {schema.VERSION_TABLE} SET version_num = '{NEWEST}'"))
    with older.reading() as session:
        assert requests.by_ids(session, ["run-1"])
    older.dispose()


def test_a_schema_of_ones_own_in_postgres(postgres_url: URL, postgres: Any) -> None:
    ours = postgres_url.update_query_dict({"options": "-c search_path=governance"})
    ledger = Ledger(ours)
    with create_engine(postgres_url, poolclass=NullPool).begin() as connection:
        connection.execute(text("CREATE SCHEMA governance"))
    ledger.open()
    ledger.dispose()
    with create_engine(postgres_url, poolclass=NullPool).connect() as connection:
        assert inspect(connection).has_table("gpufair_leases", schema="governance")
        assert not inspect(connection).has_table("gpufair_leases", schema="public")


def test_a_user_who_may_not_create_tables_is_told(postgres_url: URL) -> None:
    with create_engine(postgres_url, poolclass=NullPool).begin() as connection:
        connection.execute(text("DROP ROLE IF EXISTS reader"))
        connection.execute(text("CREATE ROLE reader LOGIN"))
    ledger = Ledger(postgres_url.set(username="reader", password="s3cret"))
    with pytest.raises(LedgerError, match="tables cannot be created") as said:
        ledger.open()
    assert "permission denied" in str(said.value)
    assert "s3cret" not in str(said.value)
    ledger.dispose()
    with create_engine(postgres_url, poolclass=NullPool).begin() as connection:
        connection.execute(text("DROP ROLE reader"))


def test_passwords_that_a_cloud_gives_out_are_asked_for_each_connection(
    postgres_url: URL, tmp_path: Path
) -> None:
    tokens = []
    written = postgres_url.render_as_string(hide_password=False)
    (tmp_path / "dagster.yaml").write_text(
        f"telemetry: {{enabled: false}}\nstorage: {{postgres: {{postgres_url: '{written}'}}}}\n"
    )
    with DagsterInstance.from_config(str(tmp_path)) as instance:
        with instance.run_storage.connect() as connection:
            # As dagster-postgres does for its `auth_provider`.
            @event.listens_for(connection.engine, "do_connect")
            def token(dialect: Any, record: Any, args: Any, parameters: dict[str, Any]) -> None:
                tokens.append(f"token-{len(tokens)}")
                parameters["password"] = tokens[-1]

        ledger = ledger_of(instance)
        asked_before = len(tokens)
        ledger.open()
        ledger.dispose()
        ledger.open()
        with ledger.reading():
            pass
        assert len(tokens) == asked_before + 2
        ledger.dispose()


def test_a_server_that_is_not_there(tmp_path: Path) -> None:
    url = make_url(f"postgresql://user:s3cret@/dagster?host={tmp_path}&password=als0")
    with pytest.raises(LedgerUnavailable) as said, Ledger(url).reading():
        pass
    assert "Postgres database dagster at" in str(said.value)
    assert "s3cret" not in str(said.value)
    assert "als0" not in str(said.value)
    assert said.value.__cause__ is not None


def test_a_file_that_is_not_a_database(tmp_path: Path) -> None:
    (tmp_path / "gpufair.db").write_text(
        "this is not a database, though it is as long as one\n" * 99
    )
    url = URL.create("sqlite", database=str(tmp_path / "gpufair.db"))
    with pytest.raises(LedgerUnavailable, match="not a database"), Ledger(url).reading():
        pass
