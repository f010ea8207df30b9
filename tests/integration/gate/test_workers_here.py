"""Whether the processes of a run are there, on this machine: what its event log names is looked for."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest
from dagster import DagsterInstance, DagsterRun
from dagster._core.events import EngineEventData
from dagster._core.storage.tags import GRPC_INFO_TAG
from dagster._core.test_utils import create_run_for_test

from dagster_gpufair.gate.holders import workers as module
from dagster_gpufair.gate.holders.workers import Workers
from dagster_gpufair.ledger import leases, lifecycle
from dagster_gpufair.ledger.connect import ledger_of
from dagster_gpufair.ledger.leases import LeaseRecord
from dagster_gpufair.ledger.requests import RequestRecord

HERE = "this machine"
LOCAL = {"host": "localhost", "socket": "/tmp/code.sock"}


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOOK_EVERY", "GONE_FOR", "READ_AGAIN"):
        monkeypatch.setattr(module, name, 0.0)


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.wait()


def a_run(
    instance: DagsterInstance, server: dict[str, object] | None = None
) -> tuple[LeaseRecord, DagsterRun]:
    """A run that was launched from here, into a code server."""
    tags = {GRPC_INFO_TAG: json.dumps(server or LOCAL)}
    run = create_run_for_test(instance, job_name="train", tags=tags)
    request = RequestRecord(run.run_id, run.run_id, "red", "standard", ("t4",), 1000, 0.0)
    with ledger_of(instance).writing() as session:
        id_ = lifecycle.find(session, request, "t4", {}, 1000.0)
        assert id_ is not None
        lease = replace(leases.by_id(session, id_), launch_host=HERE)
    return lease, run


def name_process(instance: DagsterInstance, run: DagsterRun, pid: int) -> None:
    data = EngineEventData.in_process(pid)
    instance.report_engine_event(f"Started process for run (pid: {pid}).", run, data)


def end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def test_a_process_is_there_until_it_has_ended(
    instance: DagsterInstance, process: subprocess.Popen[bytes]
) -> None:
    lease, run = a_run(instance)
    workers = Workers(instance, ledger_of(instance), HERE)
    assert workers.alive(lease, run, is_over=False) is None, "the log names none yet"

    name_process(instance, run, process.pid)
    assert workers.alive(lease, run, is_over=False) is True
    assert workers.alive(lease, run, is_over=True) is True
    end(process)
    assert workers.alive(lease, run, is_over=False) is False
    assert workers.alive(lease, run, is_over=True) is False


def test_any_process_of_a_run_counts(
    instance: DagsterInstance, process: subprocess.Popen[bytes]
) -> None:
    """A worker that was killed leaves its steps behind."""
    lease, run = a_run(instance)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as step:
        for each in (process, step):
            name_process(instance, run, each.pid)
        workers = Workers(instance, ledger_of(instance), HERE)
        end(process)
        assert workers.alive(lease, run, is_over=True) is True
        step.kill()
    assert workers.alive(lease, run, is_over=True) is False


@pytest.mark.parametrize(("command", "counts"), [("tail -F -c +0 log", False), ("sleep 60", True)])
def test_what_only_copies_output_holds_no_gpus(
    instance: DagsterInstance, command: str, counts: bool
) -> None:
    """Dagster begins it beside each step, and it may outlive a worker that was killed."""
    lease, run = a_run(instance)
    script = (
        f"import subprocess; print(subprocess.Popen({command.split()}).pid, flush=True); input()"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", script], **pipes) as worker:  # type: ignore[call-overload]
        child = int(worker.stdout.readline())
        try:
            name_process(instance, run, worker.pid)
            workers = Workers(instance, ledger_of(instance), HERE)
            assert workers.alive(lease, run, is_over=False) is True
            worker.kill()
            worker.wait()
            assert workers.alive(lease, run, is_over=True) is counts
        finally:
            os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize(
    ("host", "server"),
    [
        ("another machine", LOCAL),
        (HERE, {"host": "user-code", "port": 4000}),
        (HERE, {"host": "10.0.0.7", "port": 4000}),
    ],
)
def test_nobody_can_tell_of_processes_elsewhere(
    instance: DagsterInstance,
    process: subprocess.Popen[bytes],
    host: str,
    server: dict[str, object],
) -> None:
    lease, run = a_run(instance, server)
    name_process(instance, run, process.pid)

    workers = Workers(instance, ledger_of(instance), host)

    assert workers.alive(lease, run, is_over=False) is None
    assert workers.alive(lease, run, is_over=True) is None


def test_a_later_process_with_the_same_id_is_another(
    instance: DagsterInstance,
    process: subprocess.Popen[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lease, run = a_run(instance)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as step:
        for each in (process, step):
            name_process(instance, run, each.pid)
        began, theirs = module._began, module._ticks(step.pid)
        monkeypatch.setattr(
            module, "_began", lambda ticks: began(ticks) + (3600 if ticks == theirs else 0)
        )
        workers = Workers(instance, ledger_of(instance), HERE)
        assert workers.alive(lease, run, is_over=True) is True
        end(process)
        assert workers.alive(lease, run, is_over=True) is False
        step.kill()


def test_what_was_never_seen_here_may_be_elsewhere(instance: DagsterInstance) -> None:
    """A code server in another container of the same pod: its ids mean nothing here."""
    lease, run = a_run(instance)
    name_process(instance, run, 4_000_000)
    workers = Workers(instance, ledger_of(instance), HERE)

    assert workers.alive(lease, run, is_over=False) is None
    assert workers.alive(lease, run, is_over=True) is None


def test_the_next_daemon_knows_the_processes_that_were_seen(
    instance: DagsterInstance,
    process: subprocess.Popen[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also when the clock was set, or the run deleted, since."""
    lease, run = a_run(instance)
    name_process(instance, run, process.pid)
    assert Workers(instance, ledger_of(instance), HERE).alive(lease, run, is_over=False) is True
    with ledger_of(instance).reading() as session:
        kept = replace(leases.by_id(session, lease.id), launch_host=HERE)
    began = module._began
    monkeypatch.setattr(module, "_began", lambda ticks: began(ticks) + 3600)

    later = Workers(instance, ledger_of(instance), HERE)

    assert later.alive(kept, run, is_over=False) is True
    assert Workers(instance, ledger_of(instance), HERE).alive(kept, None, is_over=True) is True
    end(process)
    assert later.alive(kept, None, is_over=True) is False
