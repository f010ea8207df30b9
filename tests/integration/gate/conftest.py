"""Stages for the gate's tests, with a database of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from gate_stage import Stage, moved_turn_clock, stage_at
from sqlalchemy import URL

from dagster_gpufair.ledger import writer

OpenStage = Callable[..., Stage]


@pytest.fixture(autouse=True)
def passes_see_their_launches_through() -> Iterator[None]:
    """However slow this machine is, a launch or a file hangs only where a test says so.

    And turns last as long as a test's passes say, which are made at moments of its own.
    """
    with pytest.MonkeyPatch.context() as patching:
        patching.setattr("dagster_gpufair.gate.queue.daemon.LAUNCH_PATIENCE", 60.0)
        patching.setattr("dagster_gpufair.engine.launch_threads.HANGS_AFTER", 60.0)
        patching.setattr("dagster_gpufair.engine.policy_file._PATIENCE", 60.0)
        patching.setattr(writer, "turn_clock", moved_turn_clock(writer.turn_clock))
        yield


@pytest.fixture
def open_stage(tmp_path: Path) -> Iterator[OpenStage]:
    """Opens a stage on SQLite, as `stage_at` does."""
    with ExitStack() as stack:
        yield lambda *args, **options: stack.enter_context(
            stage_at(tmp_path, {"sqlite": {"base_dir": str(tmp_path)}}, *args, **options)
        )


@pytest.fixture
def stage(open_stage: OpenStage) -> Stage:
    """The usual stage: two teams, eight A100s and four T4s."""
    return open_stage()


@pytest.fixture
def open_stage_on_each(storage: dict[str, Any], tmp_path: Path) -> Iterator[OpenStage]:
    """Opens a stage on SQLite and, in another test, on Postgres."""
    with ExitStack() as stack:
        yield lambda *args, **options: stack.enter_context(
            stage_at(tmp_path, storage, *args, **options)
        )


@pytest.fixture
def open_stage_on_postgres(postgres_url: URL, tmp_path: Path) -> Iterator[OpenStage]:
    """Opens a stage on Postgres."""
    url = postgres_url.render_as_string(hide_password=False)
    with ExitStack() as stack:
        yield lambda *args, **options: stack.enter_context(
            stage_at(tmp_path, {"postgres": {"postgres_url": url}}, *args, **options)
        )


@pytest.fixture
def stage_on_each(open_stage_on_each: OpenStage) -> Stage:
    """The usual stage, where it matters which database it is on."""
    return open_stage_on_each()
