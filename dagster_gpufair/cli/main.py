"""``gpufair``: one command for each question that people ask about GPUs."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from dagster_gpufair import __version__
from dagster_gpufair.cli.lazy_group import LazyCommand, LazyGroup

COMMANDS = {
    name: LazyCommand(f"dagster_gpufair.cli.{module}", name, summary)
    for name, module, summary in (
        ("queue", "queue.command", "What waits in each pool, why, and when it starts."),
        ("explain", "explain.command", "Why a run waits, or why it started when it did."),
        ("history", "history.command", "Everything that happened to a run, oldest first."),
        ("refused", "history.refused", "Runs that were refused, and why."),
        ("pools", "pools.command", "The GPUs of each pool: in use, free and reserved."),
        ("teams", "teams.command", "What each team and project may use, uses and borrows."),
        ("cordon", "pools.cordon", "Take a node into maintenance."),
        ("uncordon", "pools.cordon", "Put a node back from maintenance."),
        ("approvals", "preemption.approvals", "The stops that await a person."),
        ("approve", "preemption.approvals", "Agree that runs are stopped for a run that waits."),
        ("reject", "preemption.approvals", "Say no: nobody is stopped for that run."),
        ("pause", "preemption.pause", "Switch preemption or borrowing off for a time."),
        ("resume", "preemption.pause", "Switch preemption or borrowing on again."),
        ("keep", "preemption.keep", "Keep a run from being stopped for others, for a time."),
        ("policy", "policy.command", "The policy in force, its versions, and checks of a file."),
        ("decide", "decide.command", "What is decided in a case that you write down."),
        ("init", "policy.init", "Write a policy to start from."),
        ("demo", "demo.command", "Start Dagster with three teams that share GPUs."),
    )
}

_VALUES_OF_MODULES = 200_000
"""More than the modules of most commands hold: 150,000 with SQLAlchemy, without Dagster."""


class PlainErrors(LazyGroup):
    """What is wrong with a ledger or a policy ends a command with a message, not with a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except Exception as error:
            from dagster_gpufair.ledger.errors import LedgerError
            from dagster_gpufair.policy.problems import PolicyError

            if isinstance(error, (LedgerError, PolicyError)):
                raise click.ClickException(str(error)) from error
            raise


@click.group(cls=PlainErrors, lazy=COMMANDS)
@click.version_option(__version__, prog_name="gpufair")
def cli() -> None:
    """GPU quotas, fair order and plain reasons for the teams that share one Dagster instance."""


def main() -> None:
    """The entry point. A terminal that lacks a sign gets its escape instead of an error."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    with _modules_are_no_garbage():
        cli(prog_name="gpufair")


@contextmanager
def _modules_are_no_garbage() -> Iterator[None]:
    """Python's cyclic collector rests while a command imports what it needs, and when it ends.

    Most values of a command are its modules, and those stay: to look through them for garbage again and
    again, and once more at the end, takes a third of its time. A command that goes on (``--watch``,
    ``demo``) makes more than that, and is collected.
    """
    gc.set_threshold(_VALUES_OF_MODULES)
    try:
        yield
    finally:
        gc.freeze()


if __name__ == "__main__":
    main()
