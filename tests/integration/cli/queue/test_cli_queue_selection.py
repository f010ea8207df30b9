"""Whose runs ``gpufair queue`` shows, what runs, and how it shows them as they change."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
from cli_samples import Filling, asked, minutes, run_id, time_of_day
from click.testing import Result

from dagster_gpufair.cli.queue import command
from dagster_gpufair.ledger import leases, lifecycle

Gpufair = Callable[..., Result]


def runs(result: Result) -> list[str]:
    """The short ids in its tables, in order."""
    words = [line.split() for line in result.stdout.splitlines()]
    return [word for row in words for word in row[:2] if word.isdigit() and len(word) == 8]


@pytest.fixture
def busy(queue: Filling) -> Filling:
    """Ana's run and a backfill hold GPUs; another of Ana's, one of Bob's and one by a schedule wait."""
    queue.run(asked(1, 8, ago=90, team="vision", source="ana", max_duration=7200.0), ago=90)
    backfill = {"what": "backfill", "name": "qwertzui", "user": "ana"}
    evaluate = asked(2, 8, ago=80, source="qwertzui", job_name="evaluate", launched_by=backfill)
    queue.run(evaluate, ago=80)
    queue.submit(
        asked(3, 8, ago=40, team="vision", source="ana", job_name="finetune"),
        asked(4, 8, ago=30, source="bob@lab"),
        asked(
            5,
            8,
            ago=20,
            source="nightly",
            job_name="nightly",
            launched_by={"what": "schedule", "name": "at_2"},
        ),
    )
    return queue


def test_each_run_with_its_job_and_what_launched_it(busy: Filling, gpufair: Gpufair) -> None:
    rows = {
        words[1]: words
        for words in (line.split() for line in gpufair("queue").stdout.splitlines())
        if len(words) > 8
    }
    assert (rows["00000003"][3], rows["00000003"][7]) == ("finetune", "ana")
    assert rows["00000004"][7] == "bob@lab"
    assert rows["00000005"][3] == "nightly"
    waiting = json.loads(gpufair("queue", "--json").stdout)["waiting"]
    assert {one["run"]: one["launched_by"]["what"] for one in waiting} == {
        run_id(3): "user",
        run_id(4): "user",
        run_id(5): "schedule",
    }


def test_what_runs_is_shown_with_all(busy: Filling, gpufair: Gpufair) -> None:
    assert set(runs(gpufair("queue"))) == {"00000003", "00000004", "00000005"}
    said = gpufair("queue", "--all").stdout
    row = next(line for line in said.splitlines() if line.startswith("00000002"))
    assert row.split() == [
        *("00000002", "nlp", "evaluate", "standard", "8", "h2", "1h20m", "backfill", "qwertzui"),
        "?",
    ]
    row = next(line for line in said.splitlines() if line.startswith("00000001"))
    assert row.endswith(f"ana                by {time_of_day(-30)}  borrowed")
    running = json.loads(gpufair("queue", "--json").stdout)["running"]
    assert [(one["run"], one["job"], one["covered"]) for one in running] == [
        (run_id(1), "train", False),
        (run_id(2), "evaluate", True),
    ]


def test_my_own_runs(busy: Filling, gpufair: Gpufair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUFAIR_USER", "ana")
    assert runs(gpufair("queue", "--mine")) == ["00000003"]
    hers = {"00000001", "00000002", "00000003"}
    assert set(runs(gpufair("queue", "--mine", "--all"))) == hers, "her backfill's run is hers too"
    monkeypatch.delenv("GPUFAIR_USER")
    monkeypatch.setattr("getpass.getuser", lambda: "bob@lab")
    assert runs(gpufair("queue", "--mine")) == ["00000004"]
    monkeypatch.setattr("getpass.getuser", lambda: "nobody")
    said = " ".join(gpufair("queue", "--mine").stdout.split())
    assert "No run with the tag `user: nobody` waits or holds GPUs here." in said
    assert "GPUFAIR_USER" in said and "`gpufair queue --all` shows everybody's runs." in said


def test_my_own_runs_hold_gpus_and_none_waits(
    busy: Filling, gpufair: Gpufair, monkeypatch: pytest.MonkeyPatch
) -> None:
    with busy.ledger.writing() as session:
        lifecycle.cancel(session, [run_id(3)], 1.0, "canceled")
    monkeypatch.setenv("GPUFAIR_USER", "ana")
    said = gpufair("queue", "--mine").stdout
    assert (
        "No run with the tag `user: ana` waits here. `gpufair queue --mine --all` shows the 2 runs that hold "
        "GPUs." in said
    )
    said = gpufair("queue", "--mine", "--all").stdout
    assert "waits here. `gpufair queue` shows everybody's runs." in said


def test_of_one_team_with_what_runs(busy: Filling, gpufair: Gpufair) -> None:
    assert set(runs(gpufair("queue", "--team", "vision", "--all"))) == {"00000001", "00000003"}
    said = json.loads(gpufair("queue", "--team", "vision", "--json").stdout)
    assert [one["run"] for one in said["running"]] == [run_id(1)]


def test_watched_in_a_pipe_it_is_printed_once_for_each_change(
    busy: Filling, gpufair: Gpufair, monkeypatch: pytest.MonkeyPatch
) -> None:
    def happens() -> Iterator[None]:
        yield
        with busy.ledger.writing() as session:
            lifecycle.cancel(session, [run_id(5)], 1.0, "canceled")
        yield
        yield
        with busy.ledger.writing() as session:
            lifecycle.release(session, leases.of_run(session, run_id(1))[-1].id, 2.0, "success")
        yield
        raise KeyboardInterrupt

    waits = happens()
    monkeypatch.setattr(command.time, "sleep", lambda _: next(waits))
    said = gpufair("queue", "--watch", "--pool", "h100").stdout
    heads = [line.split("    ")[0] for line in said.splitlines() if line.startswith("h100 · ")]
    assert [head.rpartition(" · ")[2] for head in heads] == ["3 waiting", "2 waiting", "2 waiting"]
    assert "· none free ·" in heads[1] and "· 8 free ·" in heads[2]


def test_watched_in_a_terminal_it_is_redrawn_until_ctrl_c(busy: Filling) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "dagster_gpufair.cli.main", "queue", "--watch"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "80", "LINES": "40"},
    )
    os.close(theirs)
    said = ""
    while "00000003" not in said:
        said += os.read(ours, 65536).decode(errors="replace")
    process.send_signal(2)
    with suppress(OSError):
        # What it still prints has to be read, or it cannot end.
        while os.read(ours, 65536):
            pass
    os.close(ours)
    assert process.wait(60) == 0
    assert "Traceback" not in said


def test_watching_prints_no_json(busy: Filling, gpufair: Gpufair) -> None:
    assert "--watch and --json" in gpufair("queue", "--watch", "--json", code=2).stderr


def test_what_was_granted_and_has_not_begun_is_being_launched(
    queue: Filling, gpufair: Gpufair
) -> None:
    """An image is being pulled, or the launch waits its turn: the GPUs are held, and it waits no more."""
    queue.submit(asked(1, 8, ago=3, max_duration=3600.0))
    queue.decide(ago=2, begins=False)
    said = gpufair("queue", "--all").stdout
    assert next(row for row in said.splitlines() if row.startswith("00000001")).endswith(
        "  being launched"
    )
    explained = " ".join(gpufair("explain", "00000001").stdout.split())
    assert "It was granted 8 h100 on h1 at " in explained
    assert "and is being launched: it holds them already, and its work has not begun." in explained
    (running,) = json.loads(gpufair("queue", "--json").stdout)["running"]
    assert running["being_launched"]
    with queue.ledger.writing() as session:
        lifecycle.begin(session, leases.open_leases(session)[0].id, minutes(1), minutes(1))
    assert "being launched" not in gpufair("queue", "--all").stdout


def test_what_is_over_and_still_there_is_told(
    busy: Filling, gpufair: Gpufair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its bound means nothing any more: only its processes hold the GPUs, and nobody knows for how long."""
    with busy.ledger.writing() as session:
        (lease,) = leases.of_run(session, run_id(1))
        lifecycle.linger(session, lease.id, lease.started_at + 60, "its step is there", time.time())
    row = next(
        line
        for line in gpufair("queue", "--all").stdout.splitlines()
        if line.startswith("00000001")
    )
    assert "run is over" in row
    said = gpufair("explain", run_id(1)).stdout
    assert "though the run is over: processes of it are still there" in " ".join(said.split())
    running = json.loads(gpufair("queue", "--json").stdout)["running"]
    assert [(one["run"], one["lingering"], one["at_the_latest"]) for one in running][:1] == [
        (run_id(1), True, None)
    ]
