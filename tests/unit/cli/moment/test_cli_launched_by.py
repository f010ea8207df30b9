"""What launched a run, as far as its source tells."""

from __future__ import annotations

import pytest

from dagster_gpufair.cli.moment.launched_by import Launcher, launched_by
from dagster_gpufair.ledger.requests import RequestRecord


@pytest.mark.parametrize(
    ("source", "what", "words"),
    [
        ("qwertzui", "backfill", "backfill qwertzui"),
        ("ana", "user", "ana"),
        ("ana@example.com", "user", "ana@example.com"),
        ("train", "job", "job"),
        (None, "job", "job"),
        ("\x1b[31m", "user", "\\x1b[31m"),
    ],
)
def test_backfills_people_and_jobs(source: str | None, what: str, words: str) -> None:
    record = RequestRecord(
        "id", "id", "nlp", "standard", ("h100",), 1000, 0.0, job_name="train", source=source
    )
    launcher = launched_by(record)
    assert launcher == Launcher(what, source or "train")
    assert launcher.words() == words
