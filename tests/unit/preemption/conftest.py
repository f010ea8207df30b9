"""A channel as the daemon opens it, a clock that a test moves, and a process that has looked at nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dagster_gpufair.preemption import notices, place, reports


class Clock:
    """Stands in for the module `time`: it goes on when somebody sleeps, or when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.offset = 1.7e9
        """How far the time of day, which may be wrong, is from the clock that nobody sets."""
        self.while_asleep: Callable[[], object] = lambda: None

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now + self.offset

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.while_asleep()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(notices, "time", clock)
    monkeypatch.setattr(reports, "time", clock)
    return clock


@pytest.fixture(autouse=True)
def a_fresh_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in (
        place.CHANNEL_VARIABLE,
        place.STEP_VARIABLE,
        place.CHECKPOINT_VARIABLE,
        place.CHANNELS_VARIABLE,
        "DAGSTER_HOME",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(place, "_last_found", None)
    monkeypatch.setattr(notices, "_watches", {})
    monkeypatch.setattr(reports, "_unwritten", set())
    monkeypatch.chdir(tmp_path)


class Channel:
    """What the daemon writes into a channel, and what it finds there."""

    def __init__(self, folder: Path):
        self.folder = folder
        folder.mkdir(parents=True)

    def put(self, name: str, said: Any) -> None:
        beside = self.folder / f".{name}"
        beside.write_text(said if isinstance(said, str) else json.dumps(said))
        beside.replace(self.folder / name)

    def notify(self, until: float, **more: Any) -> None:
        self.put("notice.json", {"schema": 1, "until": until, "rule": "reclaim", **more})

    def spare(self) -> None:
        (self.folder / "notice.json").unlink()

    def said(self, name: str) -> Any:
        return json.loads((self.folder / name).read_text())

    def names(self) -> set[str]:
        return {path.name for path in self.folder.iterdir()}


@pytest.fixture
def channel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Channel:
    channel = Channel(tmp_path / "channels" / "run1")
    monkeypatch.setenv(place.CHANNEL_VARIABLE, str(channel.folder))
    return channel
