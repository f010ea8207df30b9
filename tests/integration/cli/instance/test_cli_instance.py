"""Which Dagster instance a command asks, and what it says when there is none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml
from cli_samples import COORDINATOR, POLICY, Filling, asked
from click.testing import Result
from dagster import DagsterInstance

from dagster_gpufair.cli.instance.dagster_internals import open_instance
from dagster_gpufair.cli.instance.option import DEV_HOME
from dagster_gpufair.ledger import policies
from dagster_gpufair.ledger.connect import ledger_of

Gpufair = Callable[..., Result]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a dagster.yaml that `dagster dev` would be started in, and no DAGSTER_HOME."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "dagster.yaml").write_text(yaml.safe_dump({"run_coordinator": COORDINATOR}))
    monkeypatch.chdir(folder)
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    return folder


@pytest.fixture
def dev(project: Path) -> Iterator[Callable[[str], Filling]]:
    """Makes the home of a `dagster dev` in the project, with its ledger to be filled."""
    with ExitStack() as stack:

        def make(name: str) -> Filling:
            home = project / f"{DEV_HOME}{name}"
            home.mkdir()
            instance = stack.enter_context(open_instance(home, project))
            ledger = ledger_of(instance)
            stack.callback(ledger.dispose)
            filling = Filling(ledger)
            filling.adopt()
            return filling

        yield make


def test_there_is_none(project: Path, gpufair: Gpufair) -> None:
    for command in (("queue",), ("pools",), ("teams",), ("explain", "x"), ("policy", "history")):
        said = gpufair(*command, code=1).stderr
        assert "DAGSTER_HOME is not set, and no `dagster dev` runs in this folder." in said
        assert "`--instance .` uses the dagster.yaml of this folder." in said
    assert not any(project.glob("*.db"))


def test_the_one_of_dagster_dev_here(dev: Callable[[str], Filling], gpufair: Gpufair) -> None:
    queue = dev("abc")
    queue.submit(asked(1, 8))
    result = gpufair("queue")
    assert "00000001" in result.stdout
    assert result.stderr == (
        "Using the instance of `dagster dev` in this folder (.tmp_dagster_home_abc).\n"
    )


def test_a_home_that_a_killed_dagster_dev_left_behind(
    dev: Callable[[str], Filling], gpufair: Gpufair
) -> None:
    dev("killed").passed(ago=60)
    alive = dev("alive")
    alive.submit(asked(1, 8))
    alive.passed()
    result = gpufair("queue")
    assert "(.tmp_dagster_home_alive)" in result.stderr
    assert "00000001" in result.stdout


@pytest.mark.parametrize(
    ("ago", "why"),
    [(0, "more than one runs"), (60, "no queue daemon follows any of them now")],
)
def test_several_of_them(
    dev: Callable[[str], Filling], gpufair: Gpufair, ago: float, why: str
) -> None:
    dev("one").passed(ago)
    dev("two").passed(ago)
    said = gpufair("queue", code=1).stderr
    assert f"There are 2 homes of `dagster dev` here, and {why}; say which one" in said
    assert ".tmp_dagster_home_one\n" in said
    dev_home = next(line.strip() for line in said.splitlines() if line.endswith("two"))
    assert "policy v1" in gpufair("queue", "--instance", dev_home).stdout


def test_it_is_named(
    dev: Callable[[str], Filling], queue: Filling, gpufair: Gpufair, project: Path, tmp_path: Path
) -> None:
    dev("abc").submit(asked(1, 8))
    queue.submit(asked(2, 8))
    assert "00000002" in gpufair("queue").stdout, "DAGSTER_HOME comes before what is here"
    assert "00000001" in gpufair("queue", "--instance", str(project)).stdout
    home = project / ".tmp_dagster_home_abc"
    assert "00000001" in gpufair("queue", "--instance", str(home)).stdout
    assert "00000002" in gpufair("queue", "--instance", str(tmp_path)).stdout
    assert "does not exist" in gpufair("queue", "--instance", "nowhere", code=2).stderr


def test_dagster_home_from_an_env_file(
    queue: Filling, gpufair: Gpufair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DAGSTER_HOME")
    Path(".env").write_text(f"DAGSTER_HOME={tmp_path}\n")
    assert "policy v1" in gpufair("queue").stdout


@pytest.mark.parametrize("home", ["relative/folder", "/no/such/folder"])
def test_dagster_home_is_no_folder(
    home: str, gpufair: Gpufair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAGSTER_HOME", home)
    said = gpufair("queue", code=1).stderr
    assert f"DAGSTER_HOME is {home}, which is not the absolute path of a folder." in said


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("run_coordinator: [", "cannot be opened: "),
        ("no_such_key: 1", "dagster.yaml: unknown key `no_such_key`\n"),
        ("run_coordinator: {module: nowhere, class: X}", "run coordinator cannot be loaded: "),
        ("storage: {sqlite: {base_dir: /dev/null/x}}", "cannot be opened: "),
        (
            "run_coordinatr: {module: dagster_gpufair, class: GpuFairRunCoordinator}",
            "dagster.yaml: unknown key `run_coordinatr`; did you mean 'run_coordinator'?\n",
        ),
        (
            "concurrency: {runs: {max_concurrent_run: 3}}",
            "unknown key `concurrency.runs.max_concurrent_run`; did you mean 'max_concurrent_runs'?\n",
        ),
        (
            "run_coordinator: {modul: dagster_gpufair, class: GpuFairRunCoordinator}",
            "dagster.yaml: unknown key `run_coordinator.modul`; did you mean 'module'?\n",
        ),
        (
            "run_coordinator: {class: GpuFairRunCoordinator}",
            "dagster.yaml: key `run_coordinator.module` is missing\n",
        ),
        (
            "run_coordinator: {module: dagster_gpufair, class: GpuFairRunCoordinator, "
            "config: {polcy: x}}",
            "dagster.yaml: unknown key `run_coordinator.config.polcy`; did you mean 'policy'?\n",
        ),
        (
            "telemetry: {enabled: perhaps}",
            'dagster.yaml: `telemetry.enabled`: "perhaps" is no Bool\n',
        ),
        (
            "storage: {postgres: {postgres_url: {env: NOT_SET_HERE}}}",
            "the environment variable NOT_SET_HERE is not set\n",
        ),
    ],
)
def test_a_dagster_yaml_that_cannot_be_used(
    project: Path, gpufair: Gpufair, written: str, said: str
) -> None:
    (project / "dagster.yaml").write_text(written)
    for command in (("queue",), ("policy", "check")):
        result = gpufair(*command, "--instance", str(project), code=1)
        assert said in result.stderr
        assert len(result.stderr.splitlines()) == 1
        assert len(result.stderr) < 400


def test_another_coordinator(project: Path, gpufair: Gpufair) -> None:
    (project / "dagster.yaml").write_text("")
    said = gpufair("queue", "--instance", str(project), code=1).stderr
    assert "its run coordinator is QueuedRunCoordinator. `gpufair init` writes a policy" in said


def test_no_policy_yet(instance: DagsterInstance, gpufair: Gpufair, tmp_path: Path) -> None:
    said = gpufair("queue", code=1).stderr
    assert "gpufair.yaml: 1 error, so no GPU policy is in force\n  no such file" in said
    (tmp_path / "gpufair.yaml").write_text(POLICY)
    for command in (("queue",), ("policy", "show"), ("policy", "history")):
        said = gpufair(*command, code=1).stderr
        assert "No GPU policy is in force yet: " in said
        assert "is adopted on the daemon's first pass" in said


def test_a_policy_that_this_version_cannot_read(
    instance: DagsterInstance, gpufair: Gpufair
) -> None:
    with ledger_of(instance).writing() as session:
        policies.adopt(session, "pools: {}\nfuture: 1", "digest", "gpufair.yaml", "tomorrow", 1.0)
    said = gpufair("queue", code=1).stderr
    assert said.startswith("Error: policy v1: ")
    assert "future" in said


def test_a_ledger_that_cannot_be_used(
    instance: DagsterInstance, gpufair: Gpufair, tmp_path: Path
) -> None:
    (tmp_path / "gpufair.db").write_text("this is no database, however long it may be" * 99)
    said = gpufair("queue", code=1).stderr
    assert said.startswith(f"Error: The GPU ledger (the file {tmp_path}/gpufair.db) cannot be used")
    assert "Traceback" not in said
