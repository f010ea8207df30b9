"""The ledger that is found by ``dagster.yaml`` alone is the one that Dagster itself would lead to."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from cli_samples import COORDINATOR, Filling, asked
from click.testing import Result
from dagster import DagsterInstance
from sqlalchemy import URL

from dagster_gpufair.cli.instance import opening
from dagster_gpufair.cli.instance.dagster_internals import open_instance
from dagster_gpufair.cli.instance.storage_settings import ledger_by_settings
from dagster_gpufair.ledger.connect import ledger_of

Gpufair = Callable[..., Result]


def settings(folder: Path, **sections: Any) -> Path:
    """A folder with this dagster.yaml."""
    (folder / "dagster.yaml").write_text(
        yaml.safe_dump(
            {"telemetry": {"enabled": False}, "run_coordinator": COORDINATOR, **sections}
        )
    )
    return folder


def by_dagster(folder: Path) -> URL:
    """Where Dagster leads to, once the ledger was there."""
    with open_instance(folder, folder) as instance:
        ledger = ledger_of(instance)
        ledger.open()
        ledger.dispose()
        return ledger.url


@pytest.mark.parametrize("base", [None, "data", {"env": "GPUFAIR_TEST_DATA"}])
def test_sqlite(tmp_path: Path, base: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tmp_path / "data"
    data.mkdir()
    monkeypatch.setenv("GPUFAIR_TEST_DATA", str(data))
    if base is None:
        folder = settings(tmp_path)
    else:
        base = str(data) if base == "data" else base
        folder = settings(tmp_path, storage={"sqlite": {"base_dir": base}})
    assert ledger_by_settings(folder, folder) is None, "nothing is there yet, and none is made"
    assert by_dagster(folder) == ledger_by_settings(folder, folder)


@pytest.mark.parametrize("form", ["url", "url in the environment", "parts"])
def test_postgres(
    tmp_path: Path, postgres_url: URL, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = postgres_url.render_as_string(hide_password=False)
    monkeypatch.setenv("GPUFAIR_TEST_URL", whole)
    monkeypatch.setenv("GPUFAIR_TEST_USER", str(postgres_url.username))
    parts: dict[str, Any] = {
        "username": {"env": "GPUFAIR_TEST_USER"},
        "password": "p@ss/w:ord",
        "hostname": "localhost",
        "db_name": postgres_url.database,
        "port": 5432,
        "params": dict(postgres_url.query),
    }
    said = {
        "url": {"postgres_url": whole},
        "url in the environment": {"postgres_url": {"env": "GPUFAIR_TEST_URL"}},
        "parts": {"postgres_db": parts},
    }[form]
    folder = settings(tmp_path, storage={"postgres": said})
    assert by_dagster(folder) == ledger_by_settings(folder, folder)


@pytest.mark.parametrize(
    "sections",
    [
        {"no_such_key": 1},
        {"instance_class": {"module": "nlp", "class": "Instance"}},
        {"run_storage": {"module": "nlp", "class": "Storage"}},
        {"storage": {"custom": {"module": "nlp", "class": "Storage"}}},
        {
            "storage": {
                "postgres": {"postgres_url": "postgresql://x/y", "auth_provider": {"gcp_wif": {}}}
            }
        },
        {"storage": {"postgres": {"postgres_url": {"env": "NOT_SET_HERE"}}}},
        {"storage": {"mysql": {"mysql_url": "mysql://x/y"}}},
        {"storage": {"sqlite": {"base_dir": 7, "more": 1}}},
        {"storage": []},
    ],
)
def test_what_is_not_recognised_is_left_to_dagster(
    tmp_path: Path, sections: dict[str, Any]
) -> None:
    (tmp_path / "gpufair.db").touch()
    assert ledger_by_settings(settings(tmp_path), tmp_path) is not None
    assert ledger_by_settings(settings(tmp_path, **sections), tmp_path) is None


@pytest.mark.parametrize("text", ["run_coordinator: [", "- a", "", "7"])
def test_settings_that_are_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "gpufair.db").touch()
    (tmp_path / "dagster.yaml").write_text(text)
    assert ledger_by_settings(tmp_path, tmp_path) is None


@pytest.mark.parametrize(
    "words", [("queue",), ("pools",), ("teams",), ("explain", "00000001"), ("history", "00000001"),
              ("refused",), ("policy", "show"), ("policy", "history")], ids=" ".join
)  # fmt: skip
def test_commands_that_only_read_the_ledger_open_no_instance(
    queue: Filling, gpufair: Gpufair, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.submit(asked(1, 8))

    def open_it(*_: Any) -> DagsterInstance:
        raise AssertionError("it takes more than a second")

    monkeypatch.setattr(opening, "_open", open_it)
    assert gpufair(*words).stdout


def test_they_import_no_dagster_either(queue: Filling) -> None:
    queue.submit(asked(1, 8))
    code = (
        "import sys; from dagster_gpufair.cli.main import main; sys.argv = ['gpufair', 'queue']\n"
        "try: main()\nexcept SystemExit as end: assert not end.code\n"
        "assert 'dagster' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr.decode()
    assert b"00000001" in done.stdout
