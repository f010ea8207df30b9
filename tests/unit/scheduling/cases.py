"""Where the decision cases are: the project's own, and those that come with its design."""

from __future__ import annotations

from pathlib import Path

from dagster_gpufair.scheduling.cases.case import Case, parse_case

OWN = Path(__file__).resolve().parents[2] / "cases"
_SHARED = Path(__file__).resolve().parents[3].parent / "shared"
SHARED = (_SHARED / "cases", _SHARED / "faults")

OTHERWISE = {
    "faults/again-a-spared-victim": "q7 fits on the card that q9 opened, beside the three whole cards "
    "that are promised to fire: it starts, since nothing may wait that has room (design §5)",
}
"""Shared cases of which we decide otherwise than they expect, and why."""


def files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.yaml"))


def read(path: Path) -> Case:
    return parse_case(path.read_bytes(), str(path))
