"""What the command line relies on in Dagster's private modules: a release that moves it fails here."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from dagster._cli.utils import TMP_DAGSTER_HOME_PREFIX

from dagster_gpufair.cli.instance.dagster_internals import env_file, open_instance
from dagster_gpufair.cli.instance.opening import DEV_HOME


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
