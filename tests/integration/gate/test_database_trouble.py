"""The database goes away, fills up, or is newer than this package: it is said, and all goes on after."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from gate_scene import POLICY, Scene, at_moment
from gate_stage import Stage
from sqlalchemy import event

OpenStage = Callable[..., Stage]


@pytest.fixture(autouse=True)
def dagster_does_not_wait_to_connect_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It tries six times, six seconds long, at each of its connections."""
    monkeypatch.setattr("dagster_postgres.utils.calculate_delay", lambda **_: 0.0)


def test_a_ledger_of_a_newer_release(stage: Stage, tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "gpufair.db") as database:
        database.execute("CREATE TABLE gpufair_alembic_version (version_num VARCHAR(32))")
        database.execute("INSERT INTO gpufair_alembic_version VALUES ('0099_since_2.5.0')")

    gpu = stage.submit(team="red", pool="a100", gpus=1)
    cpu = stage.submit()
    for _ in range(2):
        (error,) = stage.troubled_pass()
        assert "Install dagster-gpufair 2.5.0 or newer" in error

    assert stage.launched == [cpu]
    assert stage.status(gpu) == "QUEUED"
    assert "environment" not in stage.tags(gpu).get("reason", "")
    said = [message for message in stage.log.said() if "No GPU run is started" in message]
    assert len(said) == 1, "said once, not at every pass"

    with sqlite3.connect(tmp_path / "gpufair.db") as database:
        database.execute("DROP TABLE gpufair_alembic_version")
    stage.pass_()
    assert stage.launched == [cpu, gpu]
    stage.assert_nothing_lost()


def test_postgres_goes_away_between_passes(
    open_stage_on_postgres: OpenStage, postgres: Any
) -> None:
    stage = open_stage_on_postgres()
    runs = stage.submit(team="red", pool="a100", gpus=4)
    waits = stage.submit(team="red", pool="a100", gpus=8)
    cpu = stage.submit()
    stage.pass_()

    postgres.stop()
    try:
        assert stage.troubled_pass() != []
        assert stage.troubled_pass() != []
        with pytest.raises(Exception, match="connection"):
            stage.submit(team="red", pool="a100", gpus=1)
    finally:
        postgres.start()
    said = [message for message in stage.log.said() if "No GPU run is started" in message]
    assert len(said) == 1
    assert "cannot be used now" in said[0]

    stage.pass_()
    assert stage.launched == [runs, cpu]
    assert stage.holders() == {runs}
    stage.succeed(runs)
    stage.pass_()
    assert stage.launched == [runs, cpu, waits]
    stage.assert_nothing_lost()


def test_postgres_goes_away_in_the_middle_of_a_pass(
    open_stage_on_postgres: OpenStage, postgres: Any
) -> None:
    stage = open_stage_on_postgres(POLICY, max_user_code_failure_retries=9)
    for moment in (5, 24, 43, 62):
        scene = Scene(stage)
        try:
            with at_moment(moment, postgres.stop):
                stage.troubled_pass()
        finally:
            postgres.start()

        stage.pass_()
        stage.pass_()

        scene.assert_brought_right()
        assert {scene.starts, scene.unseen} <= set(stage.launched)
        scene.finish()


@contextmanager
def disk_with(spare: int, stage: Stage) -> Iterator[None]:
    """A disk with room for so many more pages of the ledger."""
    ledger, engine = stage.ledger, stage.ledger._engine
    with ledger.reading() as session:
        pages = session.connection().exec_driver_sql("PRAGMA page_count").scalar_one()

    def fill(connection: sqlite3.Connection, _: Any) -> None:
        connection.execute(f"PRAGMA max_page_count={pages + spare}")

    event.listen(engine, "connect", fill)
    ledger.dispose()
    yield
    event.remove(engine, "connect", fill)
    ledger.dispose()


def test_the_disk_is_full(stage: Stage) -> None:
    runs = stage.submit(team="red", pool="a100", gpus=4)
    stage.pass_()
    with disk_with(0, stage):
        # Some fit into what is left of the last pages.
        gpus = [stage.submit(team="red", pool="t4", gpus=1) for _ in range(24)]
        cpu = stage.submit()
        errors = stage.troubled_pass()
        assert "database or disk is full" in errors[0]

    assert [stage.status(run_id) for run_id in gpus] == ["QUEUED"] * len(gpus)
    assert stage.launched == [runs, cpu]
    assert stage.holders() == {runs}
    stage.finish_all(most_passes=40)
    assert set(stage.launched) == {runs, cpu, *gpus}
    stage.assert_nothing_lost()


def test_the_disk_fills_up_in_the_middle_of_a_pass(open_stage: OpenStage) -> None:
    policy = "pools: {t4: {gpus: 40}}\nteams: {red: {quota: {t4: 40}}}"
    stage = open_stage(policy, max_concurrent_runs=-1)
    stage.pass_()
    gpus = [stage.enqueue(team="red", pool="t4", gpus=1) for _ in range(20)]
    troubled = 0
    for spare in range(40):
        with disk_with(spare, stage):
            troubled += bool(stage.troubled_pass())
        granted = stage.holders()
        assert len(granted) in (0, len(gpus)), "the grants of a pass are written all or none"
        assert set(stage.launched) <= granted
        if granted:
            break

    assert troubled > 1
    stage.pass_until(lambda: set(stage.launched) == set(gpus))
    stage.pass_()
    stage.assert_nothing_lost()
