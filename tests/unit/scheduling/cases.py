"""Where the decision cases are: the project's own, and those that come with its design."""

from __future__ import annotations

from pathlib import Path

from dagster_gpufair.scheduling.case import Case, parse_case

OWN = Path(__file__).resolve().parents[2] / "cases"
SHARED = Path(__file__).resolve().parents[3].parent / "shared" / "cases"


def files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.yaml"))


def read(path: Path) -> Case:
    return parse_case(path.read_bytes(), str(path))
