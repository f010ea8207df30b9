"""An instance with our coordinator, its ledger to be filled, and the command line to ask it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_samples import COORDINATOR, Filling, begin
from click.testing import CliRunner, Result
from dagster import DagsterInstance

from dagster_gpufair.cli.main import cli
from dagster_gpufair.ledger.connect import ledger_of


@pytest.fixture(autouse=True)
def around_noon(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In the zone where it is noon now: all times of a test are of one day, and without dates."""
    begin()
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setenv("TZ", f"NOON{time.gmtime().tm_hour - 12:+d}")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    """SQLite, unless a test is parametrized with ``postgres``."""
    if getattr(request, "param", "sqlite") == "postgres":
        url = request.getfixturevalue("postgres_url")
        return {"postgres": {"postgres_url": url.render_as_string(hide_password=False)}}
    return {"sqlite": {"base_dir": str(tmp_path)}}


@pytest.fixture
def instance(
    instance_with: Callable[..., DagsterInstance], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> DagsterInstance:
    """The instance that commands find by DAGSTER_HOME, from another folder."""
    instance = instance_with(run_coordinator=COORDINATOR)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    return instance


@pytest.fixture
def queue(instance: DagsterInstance) -> Filling:
    """The ledger of the instance, with the sample policy in force and a daemon that just passed."""
    filling = Filling(ledger_of(instance))
    filling.adopt()
    filling.passed()
    return filling


@pytest.fixture
def gpufair() -> Callable[..., Result]:
    """Runs ``gpufair`` as a person would type it: ``gpufair("queue", "--all")``."""

    def run(*words: str, code: int = 0) -> Result:
        result = CliRunner().invoke(cli, words)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == code, result.output
        return result

    return run
