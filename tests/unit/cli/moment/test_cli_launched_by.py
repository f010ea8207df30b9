"""What launched a run, in few words."""

from __future__ import annotations

import pytest

from dagster_gpufair.cli.moment.launched_by import Launcher, launched_by
from dagster_gpufair.ledger.requests import RequestRecord


@pytest.mark.parametrize(
    ("said", "launcher", "words"),
    [
        (
            {"what": "backfill", "name": "qwertzui", "user": "ana"},
            Launcher("backfill", "qwertzui", "ana"),
            "backfill qwertzui",
        ),
        ({"what": "schedule", "name": "at_2"}, Launcher("schedule", "at_2"), "schedule at_2"),
        ({"what": "sensor", "name": "new_data"}, Launcher("sensor", "new_data"), "sensor new_data"),
        ({"what": "user", "name": "ana", "user": "ana"}, Launcher("user", "ana", "ana"), "ana"),
        ({"what": "job", "name": "train"}, Launcher("job", "train"), "job"),
        (None, Launcher("job", "train"), "job"),
        ({"what": "user", "name": "\x1b[31m"}, Launcher("user", "\x1b[31m"), "\\x1b[31m"),
    ],
)
def test_backfills_schedules_sensors_people_and_jobs(
    said: dict[str, str] | None, launcher: Launcher, words: str
) -> None:
    record = RequestRecord(
        "id", "id", "nlp", "standard", ("h100",), 1000, 0.0, job_name="train", launched_by=said
    )
    assert launched_by(record) == launcher
    assert launcher.words() == words
