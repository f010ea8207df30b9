"""``gpufair``: one command for each question that people ask about GPUs."""

from __future__ import annotations

import sys
from typing import Any

import click

from dagster_gpufair import __version__
from dagster_gpufair.cli.decide.command import decide
from dagster_gpufair.cli.demo.command import demo
from dagster_gpufair.cli.explain.command import explain
from dagster_gpufair.cli.policy.command import policy
from dagster_gpufair.cli.policy.init import init
from dagster_gpufair.cli.pools.command import pools
from dagster_gpufair.cli.pools.cordon import cordon, uncordon
from dagster_gpufair.cli.queue.command import queue
from dagster_gpufair.cli.teams.command import teams
from dagster_gpufair.ledger.errors import LedgerError
from dagster_gpufair.policy.problems import PolicyError


class PlainErrors(click.Group):
    """What is wrong with a ledger or a policy ends a command with a message, not with a traceback."""

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except (LedgerError, PolicyError) as error:
            raise click.ClickException(str(error)) from error


@click.group(cls=PlainErrors)
@click.version_option(__version__, prog_name="gpufair")
def cli() -> None:
    """GPU quotas, fair order and plain reasons for the teams that share one Dagster instance."""


for command in (queue, explain, pools, teams, cordon, uncordon, policy, decide, init, demo):
    cli.add_command(command)


def main() -> None:
    """The entry point. A terminal that lacks a sign gets its escape instead of an error."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    cli(prog_name="gpufair")


if __name__ == "__main__":
    main()
