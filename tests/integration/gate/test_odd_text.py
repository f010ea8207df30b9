"""Text of any content and length, wherever it comes from: nothing breaks, nothing of it is executed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from gate_stage import Stage

OpenStage = Callable[..., Stage]
ODD = {
    "quotes": 'it\'s "quoted" `so` \\',
    "SQL": "x'); DROP TABLE gpufair_requests; --",
    "a format": "%s {} %(name)s {0.__class__} $HOME",
    "lines": "one\ntwo\r\n\tthree\x1b[31m",
    "emoji": "🦑 Größe 模型 \u202e",
    "markup": "[bold]x[/bold] <script>alert(1)</script>",
    "long": "x" * 10_000,
}


def test_names_that_dagster_lets_people_choose(open_stage_on_each: OpenStage) -> None:
    """Jobs, code locations, users and backfills, of runs that start, wait, come late, or fail to start."""
    stage = open_stage_on_each(max_user_code_failure_retries=9)
    stage.launcher.unreachable.update(ODD.values())
    runs: dict[str, tuple[str, str]] = {}
    for number, text in enumerate(ODD.values()):
        short = text[:255]  # as much as Dagster's own tables take
        odd = {"dagster/backfill": short, "user": text, "org/note": text}
        enter = stage.enqueue if number % 2 else stage.submit
        runs[enter(short, text, team="red", pool="t4", gpus=1, **odd)] = (short, text)

    stage.pass_()
    stage.pass_()
    stage.pass_()

    for run_id, (job, location) in runs.items():
        assert stage.status(run_id) == "QUEUED"
        assert len(stage.tags(run_id)["reason"]) < 100
        assert len(stage.tags(run_id)["why"]) < 300
        assert len(stage.events(run_id)) < 5_000
        request = stage.request(run_id)
        assert request is not None and (request.job_name, request.location) == (job, location)
    stage.launcher.unreachable.clear()
    stage.restart_daemon()
    stage.finish_all()
    assert sorted(stage.launched) == sorted(runs)
    stage.assert_nothing_lost()


@pytest.mark.parametrize("text", [*ODD.values(), "nul\x00byte"], ids=[*ODD, "NUL"])
def test_a_tag_of_ours_is_refused_in_few_words(stage: Stage, text: str) -> None:
    run_id = stage.submit(team=text, pool=text, tier=text, gpus=1)

    assert stage.status(run_id) == "FAILURE"
    said = stage.events(run_id)
    assert "refused this run" in said
    assert len(said) < 600
    assert stage.tags(run_id)["reason"] == "invalid_request"
    assert stage.history(run_id) == ["refused"]


def test_a_tag_with_an_odd_name(stage: Stage) -> None:
    run_id = stage.submit(**{"team": "red", "pool": "t4", f"gpufair/{ODD['long']}": "x"})

    assert stage.status(run_id) == "FAILURE"
    assert len(stage.events(run_id)) < 600


def test_a_source_with_a_text_that_no_database_holds(stage: Stage) -> None:
    """Postgres knows no NUL; on both the ledger keeps something it finds again."""
    shards = [
        stage.enqueue(team="red", pool="t4", gpus=4, **{"dagster/backfill": "nul\x00" + "x" * 999})
        for _ in range(2)
    ]
    stage.pass_()
    stage.succeed(shards[0])
    stage.pass_()

    assert stage.launched == shards
    (first, second) = (stage.request(run_id) for run_id in shards)
    assert first is not None and second is not None and first.source == second.source


def test_a_code_location_error_of_many_lines(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    error = ODD["markup"] + "x" * 10_000 + "\n" + ODD["long"]
    monkeypatch.setattr(
        "dagster_gpufair.gate.queue.gate.location_errors", lambda _: {"jobs": error}
    )
    waits = stage.submit(team="red", pool="t4", gpus=1)

    stage.pass_()

    assert stage.reason(waits) == "environment"
    assert len(stage.events(waits)) < 600
