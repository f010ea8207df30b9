"""Text of any content and length, wherever it comes from: nothing breaks, nothing of it is executed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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
FOR_OURS = [
    "team",
    "project",
    "tier",
    "pool",
    "gpus",
    "gpus_per_node",
    "kind",
    "max_duration",
    "hold",
]


@pytest.mark.parametrize("text", ODD.values(), ids=ODD)
def test_names_that_dagster_lets_people_choose(stage_on_each: Stage, text: str) -> None:
    """A run that starts, one that waits and says so, and the user and backfill they are from."""
    stage = stage_on_each
    odd = {"dagster/backfill": text, "user": text}
    runs = stage.submit(text, text, team="red", pool="a100", gpus=4, **odd)
    waits = stage.submit(text, text, team="red", pool="a100", gpus=8, **odd)
    seen_late = stage.enqueue(text, text, team="red", pool="a100", gpus=8, **odd)
    stage.launcher.unreachable.add(text)
    gone = stage.submit(text, text, team="red", pool="t4", gpus=1, **odd)
    stage.pass_()
    stage.pass_()
    stage.launcher.unreachable.clear()

    for run_id in (waits, seen_late, gone):
        assert stage.status(run_id) == "QUEUED"
        assert all(len(value) < 100 for key, value in our_tags(stage, run_id).items())
        assert len(stage.events(run_id)) < 5_000
    request = stage.request(waits)
    assert request is not None and request.job_name == text
    stage.restart_daemon()
    stage.finish_all()
    assert runs in stage.launched
    stage.assert_nothing_lost()


def our_tags(stage: Stage, run_id: str) -> dict[str, str]:
    return {key: value for key, value in stage.tags(run_id).items() if key in ("state", "reason")}


@pytest.mark.parametrize("text", [*ODD.values(), "nul\x00byte"], ids=[*ODD, "NUL"])
def test_tags_of_ours_are_refused_in_few_words(stage: Stage, text: str) -> None:
    for tag in FOR_OURS:
        run_id = stage.submit(**{"team": "red", "pool": "t4", "gpus": 1, tag: text})

        assert stage.status(run_id) == "FAILURE", tag
        said = stage.events(run_id)
        assert "refused this run" in said
        assert len(said) < 600, tag
        assert all(len(value) < 100 for value in our_tags(stage, run_id).values())
        assert stage.history(run_id) == ["refused"]


def test_a_tag_with_an_odd_name(stage: Stage) -> None:
    run_id = stage.submit(**{"team": "red", "pool": "t4", f"gpufair/{ODD['long']}": "x"})

    assert stage.status(run_id) == "FAILURE"
    assert len(stage.events(run_id)) < 600


@pytest.mark.parametrize("run_id", ["it's; DROP TABLE x --", "🦑 [b]", "x" * 250])
def test_run_ids_that_dagster_takes(stage_on_each: Stage, run_id: str) -> None:
    stage = stage_on_each
    stage.submit(run_id=run_id, team="red", pool="a100", gpus=4)
    stage.submit(run_id=f"{run_id}2", team="red", pool="a100", gpus=8)
    stage.pass_()
    stage.pass_()
    assert stage.holders() == {run_id}

    stage.succeed(run_id)
    stage.pass_()

    assert stage.launched == [run_id, f"{run_id}2"]
    assert stage.history(run_id) == ["submitted", "granted", "released"]
    stage.assert_nothing_lost()


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
    sources: dict[tuple[str, str], Any] = stage.daemon._gate.queue.book.source_starts
    assert ("red", first.source) in sources


def test_a_code_location_error_of_many_lines(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    error = ODD["markup"] + "x" * 10_000 + "\n" + ODD["long"]
    monkeypatch.setattr("dagster_gpufair.gate.daemon.location_errors", lambda _: {"jobs": error})
    waits = stage.submit(team="red", pool="t4", gpus=1)

    stage.pass_()

    assert stage.reason(waits) == "environment"
    assert len(stage.events(waits)) < 600
