"""A pass that has all kinds of things to do, and something that befalls it in the middle."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

from gate_stage import Stage
from sqlalchemy import Connection, Engine, event

READS = ("SELECT", "PRAGMA", "SET", "BEGIN", "SHOW")
POLICY = """
pools: {a100: {nodes: {n1: 8}}, t4: {gpus: 4}}
teams: {red: {quota: {a100: 8, t4: 4}}}
"""


@contextmanager
def at_moment(moment: int, befalls: Callable[[], object]) -> Iterator[None]:
    """Something happens just before the n-th write becomes lasting, in whichever thread and database.

    Dagster's Postgres engine makes every statement lasting, all others do so when they commit.
    """
    moments = count(1)

    def pass_moment() -> None:
        if next(moments) == moment:
            befalls()

    def before_statement(connection: Connection, _: Any, statement: str, *__: Any) -> None:
        if statement.lstrip().startswith(READS):
            return
        if getattr(connection.connection.dbapi_connection, "autocommit", None) is True:
            pass_moment()
        else:
            connection.info["wrote"] = True

    def before_commit(connection: Connection) -> None:
        if connection.info.pop("wrote", False):
            pass_moment()

    event.listen(Engine, "before_cursor_execute", before_statement)
    event.listen(Engine, "commit", before_commit)
    try:
        yield
    finally:
        _forget(before_statement, before_commit)


def _forget(before_statement: Any, before_commit: Any) -> None:
    event.remove(Engine, "before_cursor_execute", before_statement)
    event.remove(Engine, "commit", before_commit)


class Scene:
    """All that a pass may have to do at once, for a daemon that is about to begin."""

    def __init__(self, stage: Stage):
        stage.launcher.broken.add("broken")
        stage.launcher.unreachable.add("gone")
        self.stage = stage
        self.ended = stage.submit(team="red", pool="a100", gpus=4)
        stage.pass_()
        stage.start(self.ended)
        self.starts = stage.submit(team="red", pool="a100", gpus=4)
        self.waits = stage.submit(team="red", pool="a100", gpus=8)
        self.cancelled = stage.submit(team="red", pool="a100", gpus=8)
        self.broken = stage.submit("broken", location="b", team="red", pool="t4", gpus=1)
        self.unreachable = stage.submit(location="gone", team="red", pool="t4", gpus=1)
        self.unseen = stage.enqueue(team="red", pool="t4", gpus=1)
        self.refused = stage.enqueue(team="red", pool="t4", gpus=64)
        self.cpu = stage.submit()
        stage.succeed(self.ended)
        stage.cancel(self.cancelled)
        stage.restart_daemon()

    def assert_brought_right(self) -> None:
        """What is to be seen of it after further passes."""
        stage = self.stage
        stage.assert_nothing_lost()
        assert stage.status(self.refused) == "FAILURE"
        assert stage.status(self.cancelled) == "CANCELED"
        assert stage.status(self.broken) in ("FAILURE", "STARTING")
        assert stage.status(self.unreachable) in ("QUEUED", "STARTING")
        assert stage.status(self.waits) == "QUEUED"
        for run_id in (self.starts, self.unseen, self.cpu):
            # As with Dagster's own daemon, a run may be marked as starting and never reach its launcher.
            assert stage.status(run_id) == "STARTING", stage.events(run_id)

    def finish(self) -> None:
        """All that runs ends, all that waits comes to run and ends."""
        stage = self.stage
        stage.launcher.unreachable.clear()
        stage.restart_daemon()
        stage.finish_all()
        stage.assert_nothing_lost()
        assert stage.launched.count(self.waits) == 1
        assert stage.history(self.waits) == ["submitted", "granted", "released"]
        assert all(lease.released_at is not None for lease in stage.leases(self.starts))
