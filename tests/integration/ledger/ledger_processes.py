"""What the tests let other processes do to a ledger.

Spawned, not forked, so that each is a process of its own as a daemon or a web server is. They are told
what to do and tell what came of it over pipes; nothing waits for time to pass.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any

from ledger_samples import asked
from sqlalchemy import URL, make_url

from dagster_gpufair.ledger import lifecycle, writer
from dagster_gpufair.ledger.connect import Ledger, NotQueued
from dagster_gpufair.ledger.writer import Clock
from dagster_gpufair.scheduling.model import Class

_spawning = multiprocessing.get_context("spawn")


@contextmanager
def running(work: Any, url: URL) -> Iterator[tuple[SpawnProcess, Connection]]:
    """A process that does ``work(url, pipe)``, and the other end of its pipe; ended on leaving."""
    ours, theirs = _spawning.Pipe()
    process = _spawning.Process(
        target=work, args=(url.render_as_string(hide_password=False), theirs)
    )
    process.start()
    theirs.close()
    try:
        yield process, ours
    finally:
        process.kill()
        process.join()


def grant_when_told(url: str, pipe: Connection) -> None:
    """Open the ledger when told, submit the run of the test and grant it: ``granted`` or not."""
    pipe.send("ready")
    pipe.recv()
    ledger = Ledger(make_url(url))
    with ledger.writing() as session:
        lifecycle.submit(session, asked("run-1"))
    try:
        with ledger.writing() as session:
            lifecycle.grant(
                session,
                "run-1",
                pool="h100",
                gpus=8000,
                nodes={"h1": 8000},
                class_=Class.GUARANTEED,
                at=1000.0,
                policy_version=1,
            )
    except NotQueued:
        pipe.send("not queued")
    else:
        pipe.send("granted")


def write_grants(url: str, pipe: Connection) -> None:
    """Take the right to write at 1000 for 30 s, tell the epoch, and ask again each time when told.

    Each message is a moment; the answer is whether the right is still held then.
    """
    ledger = Ledger(make_url(url))
    holder = writer.Holder.here(started=1000.0)
    with ledger.writing() as session:
        epoch = writer.take(session, holder, Clock(1000.0, "ours"), 30.0)
    pipe.send(epoch)
    while True:
        now = pipe.recv()
        with ledger.writing() as session:
            pipe.send(epoch and writer.still(session, holder.id, epoch, Clock(now, "ours"), 30.0))


def grant_slowly(url: str, pipe: Connection) -> None:
    """Take the right, and stay inside a granting transaction until told to end it."""
    ledger = Ledger(make_url(url))
    holder = writer.Holder.here(started=1000.0)
    with ledger.writing() as session:
        epoch = writer.take(session, holder, Clock(1000.0, "ours"), 30.0)
        assert epoch is not None
        lifecycle.submit(session, asked("run-1"))
    with ledger.writing() as session:
        pipe.send(writer.still(session, holder.id, epoch, Clock(1000.0, "ours"), 30.0))
        pipe.recv()
        lifecycle.grant(
            session,
            "run-1",
            pool="h100",
            gpus=8000,
            nodes={"h1": 8000},
            class_=Class.GUARANTEED,
            at=1000.0,
            policy_version=1,
        )
