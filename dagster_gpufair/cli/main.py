"""``gpufair``: one command for each question that people ask about GPUs."""

from __future__ import annotations

import sys
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
    cli(prog_name="gpufair")


if __name__ == "__main__":
    main()
