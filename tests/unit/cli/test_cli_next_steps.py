"""Every reason to wait has a next step, in the terminal and in the docs."""

from __future__ import annotations

from pathlib import Path

import pytest

from dagster_gpufair.cli.next_steps import next_step
from dagster_gpufair.scheduling.case_format import REASONS

DOCS = Path(__file__).parents[3] / "docs" / "waiting.md"


@pytest.mark.parametrize("reason", REASONS)
def test_each_reason_has_its_own(reason: str) -> None:
    assert next_step(reason) != next_step(None)
    assert f"`{reason}`" in DOCS.read_text(encoding="utf-8")


def test_what_starts_at_once_has_a_next_step_too() -> None:
    assert next_step(None) == "`gpufair queue` shows the whole line."
