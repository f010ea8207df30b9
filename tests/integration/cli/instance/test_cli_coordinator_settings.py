"""The policy file that is found by ``dagster.yaml`` alone is the one that Dagster itself would lead to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from cli_samples import COORDINATOR, POLICY, Filling, asked
from click.testing import Result
from dagster import DagsterInstance

from dagster_gpufair.cli.instance import opening
from dagster_gpufair.cli.instance.coordinator_settings import followed_policy_file
from dagster_gpufair.cli.instance.dagster_internals import open_instance

Gpufair = Callable[..., Result]


def settings(folder: Path, coordinator: Any = COORDINATOR, **sections: Any) -> Path:
    """A folder with this dagster.yaml."""
    said = {"telemetry": {"enabled": False}, "run_coordinator": coordinator, **sections}
    (folder / "dagster.yaml").write_text(yaml.safe_dump(said))
    return folder


def by_dagster(folder: Path) -> Path | None:
    """The file of our coordinator, as Dagster loads it."""
    with open_instance(folder, folder) as instance:
        coordinator = opening.coordinator_of(instance)
        return None if coordinator is None else coordinator.policy_watch.path


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"policy": "gpufair.yaml", "max_concurrent_runs": -1, "dequeue_interval_seconds": 1},
        {"policy": "elsewhere/gpufair.yaml"},
        {"policy": "/nowhere/gpufair.yaml"},
        {"dequeue_use_threads": True, "dequeue_num_workers": 4, "max_user_code_failure_retries": 0,
         "user_code_failure_retry_delay": 60},
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("there", [True, False])
def test_what_is_recognised(tmp_path: Path, options: dict[str, Any], there: bool) -> None:
    folder = settings(tmp_path, {**COORDINATOR, "config": options})
    if there:
        (folder / "gpufair.yaml").write_text(POLICY)
    found = followed_policy_file(folder, folder)
    assert found is not None
    assert found == by_dagster(folder)


def test_the_module_may_be_named_in_full(tmp_path: Path) -> None:
    named = {**COORDINATOR, "module": "dagster_gpufair.gate.submission.coordinator"}
    folder = settings(tmp_path, named)
    assert followed_policy_file(folder, folder) == by_dagster(folder) is not None


@pytest.mark.parametrize(
    ("coordinator", "sections"),
    [
        ({**COORDINATOR, "module": "dagster"}, {}),
        ({**COORDINATOR, "class": "QueuedRunCoordinator"}, {}),
        ({**COORDINATOR, "config": {"polcy": "gpufair.yaml"}}, {}),
        ({**COORDINATOR, "config": {"policy": 7}}, {}),
        ({**COORDINATOR, "config": {"policy": {"env": "NOT_SET_HERE"}}}, {}),
        ({**COORDINATOR, "config": {"max_concurrent_runs": -2}}, {}),
        ({**COORDINATOR, "config": {"max_concurrent_runs": True}}, {}),
        ({**COORDINATOR, "config": {"dequeue_use_threads": 1}}, {}),
        ({**COORDINATOR, "more": 1}, {}),
        ({"module": "dagster_gpufair"}, {}),
        ([], {}),
        (COORDINATOR, {"telemetry": {"enabled": 3}}),
        (COORDINATOR, {"run_monitoring": {"enabled": "often"}}),
        (COORDINATOR, {"no_such_key": 1}),
    ],
)
def test_what_is_not_recognised_is_left_to_dagster(
    tmp_path: Path, coordinator: Any, sections: dict[str, Any]
) -> None:
    folder = settings(tmp_path, coordinator, **sections)
    assert followed_policy_file(folder, folder) is None


def test_stock_dagster_follows_none(tmp_path: Path) -> None:
    (tmp_path / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    assert followed_policy_file(tmp_path, tmp_path) is None
    assert by_dagster(tmp_path) is None


@pytest.mark.parametrize(
    "words", [("queue",), ("explain", "00000001"), ("policy", "check"), ("policy", "check", "here.yaml")],
    ids=" ".join,
)  # fmt: skip
def test_no_instance_is_opened_when_the_daemon_is_gone_or_a_policy_is_checked(
    queue: Filling,
    gpufair: Gpufair,
    tmp_path: Path,
    words: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queue.submit(asked(1, 8))
    queue.passed(ago=60)
    for file in (tmp_path / "gpufair.yaml", Path("here.yaml")):
        file.write_text(POLICY)

    def open_it(*_: Any) -> DagsterInstance:
        raise AssertionError("it takes more than a second")

    monkeypatch.setattr(opening, "_open", open_it)
    assert gpufair(*words).stdout
