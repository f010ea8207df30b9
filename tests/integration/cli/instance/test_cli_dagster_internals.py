"""What the command line relies on in Dagster's private modules: a release that moves it fails here."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from dagster import DagsterInvalidConfigError
from dagster._cli.utils import TMP_DAGSTER_HOME_PREFIX
from dagster._core.instance.config import dagster_instance_config_schema

from dagster_gpufair.cli.instance.dagster_internals import (
    config_problems,
    env_file,
    locations_in,
    open_instance,
)
from dagster_gpufair.cli.instance.option import DEV_HOME
from dagster_gpufair.cli.instance.storage_settings import HARMLESS


def test_dagster_dev_names_its_temporary_homes_so() -> None:
    assert DEV_HOME == TMP_DAGSTER_HOME_PREFIX


def test_an_instance_keeps_its_files_elsewhere_than_its_settings(tmp_path: Path) -> None:
    home, project = tmp_path / "home", tmp_path / "project"
    home.mkdir()
    project.mkdir()
    (project / "dagster.yaml").write_text("run_retries: {enabled: true}")
    with open_instance(home, project) as instance:
        assert instance.run_retries_enabled
        assert instance.root_directory == str(home)


def test_the_env_file_of_the_current_folder_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GPUFAIR_SECRET", raising=False)
    (tmp_path / ".env").write_text("GPUFAIR_SECRET=here\n")
    with env_file():
        assert os.environ["GPUFAIR_SECRET"] == "here"
    assert "GPUFAIR_SECRET" not in os.environ


def test_what_is_wrong_in_a_dagster_yaml_has_keys_and_names(tmp_path: Path) -> None:
    (tmp_path / "dagster.yaml").write_text(
        "concurrency: {runs: {max_concurrent_run: 3}}\nrun_coordinator: {class: X}\n"
    )
    with pytest.raises(DagsterInvalidConfigError) as raised:
        open_instance(tmp_path, tmp_path)
    unknown, missing = config_problems(raised.value)
    assert (unknown.keys, unknown.unknown) == (("concurrency", "runs"), "max_concurrent_run")
    assert unknown.known == ("max_concurrent_runs", "tag_concurrency_limits")
    assert (missing.keys, missing.missing) == (("run_coordinator",), "module")


def test_keys_of_a_dagster_yaml_that_say_nothing_of_storage() -> None:
    storage = {"storage", "run_storage", "event_log_storage", "schedule_storage", "instance_class"}
    unheard_of = HARMLESS - set(dagster_instance_config_schema()) - {"storage"}
    # A Dagster older than the key takes it for a typo, and says so when it is asked.
    assert unheard_of <= {"defs_state_storage", "freshness", "backfills"}
    assert (HARMLESS & storage) == {"storage"}


def test_a_workspace_names_its_locations_without_loading_them(tmp_path: Path) -> None:
    (tmp_path / "workspace.yaml").write_text(
        """load_from:
  - python_file: missing_defs.py
  - python_module: {module_name: not.there, location_name: nlp}
  - grpc_server: {host: nowhere, port: 4000, location_name: vision}
"""
    )
    assert locations_in(tmp_path / "workspace.yaml") == ["missing_defs.py", "nlp", "vision"]
