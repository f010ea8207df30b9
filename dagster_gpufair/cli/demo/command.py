"""``gpufair demo``: Dagster with three teams that share GPUs, on any machine, to look at."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click
from sqlalchemy.exc import SQLAlchemyError

from dagster_gpufair.cli.demo.home import (
    Example,
    Home,
    find_example,
    prepared_home,
    require_free,
)
from dagster_gpufair.cli.demo.interrupts import Interrupted, Interrupts
from dagster_gpufair.cli.demo.screen import Screen
from dagster_gpufair.cli.demo.servers import Servers
from dagster_gpufair.cli.demo.verdict import Verdict, judge, summary
from dagster_gpufair.cli.demo.watch import Watch
from dagster_gpufair.cli.demo.workload import MOST_SHARDS, NotTaken, Web, Workload
from dagster_gpufair.cli.output.tables import show
from dagster_gpufair.cli.output.text import sentence
from dagster_gpufair.cli.output.times import clock
from dagster_gpufair.ledger.connect import ledger_of

if TYPE_CHECKING:
    from dagster import DagsterInstance

_LOOK_EVERY = 1.0
_STUCK_AFTER = 300.0
"""Seconds in which nothing at all happens, besides those that a run takes."""


@click.command()
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    default=3000,
    show_default=True,
    help="Where Dagster's UI is served, on this machine only.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(0, 300),
    default=8.0,
    show_default=True,
    help="How long each stand-in for GPU work takes.",
)
@click.option(
    "--shards",
    type=click.IntRange(1, MOST_SHARDS),
    default=20,
    show_default=True,
    help="How many runs the backfill has.",
)
@click.option(
    "--home",
    type=click.Path(path_type=Path),
    help="A new or empty folder for DAGSTER_HOME, which is kept "
    "[default: a temporary one, removed at the end].",
)
@click.option(
    "--exit-when-done",
    is_flag=True,
    help="End when the workload has: with 0 if all ended as it should and no quota or pool was "
    "ever exceeded, else with 1.",
)
def demo(port: int, seconds: float, shards: int, home: Path | None, exit_when_done: bool) -> None:
    """Start Dagster with three teams that ask for more GPUs than there are, and show the queue.

    Needs no GPU: pools are declared, and jobs only take time. It has a DAGSTER_HOME of its own and
    touches no other Dagster on this machine. Ctrl-C stops all that it has started.
    """
    if os.name != "posix":
        raise click.ClickException("The demo runs on Linux and macOS; on Windows, run it in WSL.")
    example = find_example()
    require_free(port)
    try:
        with Interrupts() as interrupts, prepared_home(home, example) as prepared:
            settings = _Settings(port, seconds, shards, exit_when_done)
            code = _run(example, prepared, interrupts, settings)
    except Interrupted as interrupted:
        code = interrupted.exit_code
    except SQLAlchemyError as error:
        raise click.ClickException(sentence(str(error))) from error
    sys.exit(code)


class _Settings(NamedTuple):
    port: int
    seconds: float
    shards: int
    exit_when_done: bool


def _run(example: Example, home: Home, interrupts: Interrupts, settings: _Settings) -> int:
    """The demo from start to end; returns the exit code."""
    click.echo("Starting Dagster: three code servers, web server, daemon. About ten seconds …")
    # The instance first: two processes that make its databases at once get in each other's way.
    with _instance(home) as instance, Servers(example, home, settings.port, interrupts) as servers:
        servers.start_code()
        servers.start_web()
        web = Web(settings.port)
        servers.wait_for(web.is_ready, "the web server")
        click.echo(_how_to_look(web, home))
        verdict = _Play(web, servers, interrupts, settings).to_the_end(instance)
        show(*summary(verdict))
        code = 0 if verdict.ok else 1
        if code:
            home.keep = True
            click.echo(f"\nThe record and the logs are kept in {home.folder}")
        if not settings.exit_when_done:
            click.echo(f"\nStill serving at {web.address} — Ctrl-C stops everything.")
            _serve(servers, interrupts)
        return code


class _Play:
    """The workload under way: submitted bit by bit, and shown until all of it has ended."""

    def __init__(self, web: Web, servers: Servers, interrupts: Interrupts, settings: _Settings):
        self._servers = servers
        self._interrupts = interrupts
        self._workload = Workload(web, settings.seconds, settings.shards)
        self._screen = Screen(footer=f"{web.address} · Ctrl-C stops everything")
        self._stuck_after = _STUCK_AFTER + settings.seconds

    def to_the_end(self, instance: DagsterInstance) -> Verdict:
        """Play it; if it comes to a standstill, to there."""
        began = time.time()
        watch = Watch(instance, self._workload)
        with self._screen:
            self._submit_next(None)
            # Only now: it looks for backfills when it starts, and then every 30 seconds.
            self._servers.start_daemon()
            while True:
                sight = watch.look()
                self._screen.show(sight)
                if sight.all_ended or watch.still_for > self._stuck_after:
                    break
                self._servers.check()
                if not self._submit_next(sight.waiting):
                    self._interrupts.wait(_LOOK_EVERY)
        return judge(instance, sight, time.time() - began)

    def _submit_next(self, waiting: frozenset[str] | None) -> bool:
        """Submit the next, if it is time; returns whether it was."""
        try:
            with self._interrupts.heeded():
                ask = self._workload.submit_next(waiting)
        except NotTaken:
            # If a server is no more, that is what there is to say.
            self._interrupts.wait(_LOOK_EVERY)
            self._servers.check()
            raise
        if ask is None:
            return False
        now = time.time()
        self._screen.tell(
            f"{clock(now, now, seconds=True)}  {ask.team} {ask.job} asks for {ask.what}"
        )
        return True


def _serve(servers: Servers, interrupts: Interrupts) -> None:
    """Until somebody wants to end."""
    try:
        while True:
            servers.check()
            interrupts.wait(_LOOK_EVERY)
    except Interrupted:
        return


@contextmanager
def _instance(home: Home) -> Iterator[DagsterInstance]:
    """The demo's instance, with its databases made."""
    from dagster import DagsterInstance

    with DagsterInstance.from_config(str(home.folder)) as instance:
        ledger_of(instance).open()
        yield instance


def _how_to_look(web: Web, home: Home) -> str:
    kept = "    (temporary: removed at the end)" if home.temporary else ""
    return f"""
Dagster is at {web.address}
  {web.address}/runs
    Every run shows in its tags whether it waits, why, and its place: gpufair/state, gpufair/reason.
    The page of a run that has started, or was refused, says in its events what happened and why.
In another terminal
  export DAGSTER_HOME={shlex.quote(str(home.folder))}{kept}
  gpufair queue
  gpufair explain RUN    with the first characters of a run's id
The policy is {home.policy}
  Change it, and it is in force a second or two later.
"""
