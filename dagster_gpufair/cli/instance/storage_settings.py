"""Where the ledger is by ``dagster.yaml`` alone, for the common ways to say it.

Importing Dagster and opening an instance takes more than a second, and most commands only read the
ledger. Whatever is not recognised here is left to Dagster, which also says what is wrong with it;
``test_cli_storage_settings.py`` compares the two.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import yaml
from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from dagster_gpufair.ledger.errors import LedgerError
from dagster_gpufair.ledger.location import ledger_url

HARMLESS = frozenset(
    (
        "auto_materialize", "backfills", "code_servers", "compute_logs", "concurrency",
        "defs_state_storage", "freshness", "local_artifact_storage", "nux", "python_logs",
        "retention", "run_coordinator", "run_launcher", "run_monitoring", "run_queue",
        "run_retries", "scheduler", "schedules", "secrets", "sensors", "storage", "telemetry",
    )
)  # fmt: skip
"""Keys that do not change where runs are kept. With any other, Dagster is asked."""


class _NotRecognised(Exception):
    """Only Dagster can say what is meant."""


def ledger_by_settings(folder: Path, config: Path) -> URL | None:
    """The ledger of the instance in ``folder`` by the settings in ``config``; None if that is not sure.

    A SQLite file that is not there is None too: opening it would make it.
    """
    try:
        url = ledger_url(_runs(_read(config / "dagster.yaml"), folder))
    except (_NotRecognised, LedgerError, ArgumentError, OSError, yaml.YAMLError, ValueError):
        return None
    if url.get_backend_name() == "sqlite" and not Path(str(url.database)).is_file():
        return None
    return url


def _read(file: Path) -> Mapping[str, Any]:
    settings = yaml.safe_load(file.read_text(encoding="utf-8"))
    if not isinstance(settings, dict) or not settings.keys() <= HARMLESS:
        raise _NotRecognised
    return settings


def _runs(settings: Mapping[str, Any], folder: Path) -> URL:
    """The database of the run storage."""
    storage = settings.get("storage", {"sqlite": {"base_dir": str(folder)}})
    if not isinstance(storage, dict) or len(storage) != 1:
        raise _NotRecognised
    ((kind, said),) = storage.items()
    if not isinstance(said, dict):
        raise _NotRecognised
    if kind == "sqlite" and said.keys() == {"base_dir"}:
        path = Path(_value(said["base_dir"])) / "history" / "runs.db"
        return URL.create("sqlite", database=str(path))
    said = {key: value for key, value in said.items() if key != "should_autocreate_tables"}
    if kind == "postgres" and said.keys() == {"postgres_url"}:
        return make_url(_value(said["postgres_url"]))
    if (
        kind == "postgres"
        and said.keys() == {"postgres_db"}
        and isinstance(said["postgres_db"], dict)
    ):
        return make_url(_connection(said["postgres_db"]))
    raise _NotRecognised


def _connection(said: Mapping[str, Any]) -> str:
    """As dagster-postgres puts it together."""
    if not said.keys() <= {
        "username", "password", "hostname", "db_name", "port", "params", "scheme",
    } or not isinstance(said.get("params", {}), dict):  # fmt: skip
        raise _NotRecognised
    user = quote(_value(said["username"]))
    if said.get("password"):
        user += f":{quote(_value(said['password']))}"
    place = f"{_value(said['hostname'])}:{_value(said.get('port', 5432))}"
    scheme = _value(said.get("scheme", "postgresql"))
    params = said.get("params")
    more = f"?{urlencode(params, quote_via=quote)}" if params else ""
    return f"{scheme}://{user}@{place}/{_value(said['db_name'])}{more}"


def _value(said: Any) -> str:
    """Text or a number as it stands, or by the name of an environment variable."""
    if isinstance(said, dict) and said.keys() == {"env"} and isinstance(said["env"], str):
        found = os.environ.get(said["env"])
        if found is None:
            raise _NotRecognised
        return found
    if isinstance(said, bool) or not isinstance(said, (str, int)):
        raise _NotRecognised
    return str(said)
