"""The list of commands, which is printed without importing any of them."""

from __future__ import annotations

from collections.abc import Mapping

import click
import pytest
from click.testing import CliRunner

from dagster_gpufair.cli.lazy_group import LazyCommand
from dagster_gpufair.cli.main import COMMANDS, cli
from dagster_gpufair.cli.policy.command import COMMANDS as POLICY_COMMANDS
from dagster_gpufair.cli.policy.command import policy


@pytest.mark.parametrize(("group", "commands"), [(cli, COMMANDS), (policy, POLICY_COMMANDS)])
def test_each_command_is_there_under_its_name(
    group: click.Group, commands: Mapping[str, LazyCommand]
) -> None:
    context = click.Context(group)
    assert group.list_commands(context) == list(commands)
    for name, lazy in commands.items():
        command = group.get_command(context, name)
        assert command is not None
        assert command.name == name
        assert command.help, "it says what it does"
        assert len(lazy.summary) <= 60, "a line of the list"
    assert group.get_command(context, "nonsense") is None


def test_the_list_names_every_command() -> None:
    said = CliRunner().invoke(cli, ["--help"]).output
    for name, lazy in COMMANDS.items():
        assert f"  {name} " in said
        assert lazy.summary in said


def test_a_command_that_does_not_exist() -> None:
    result = CliRunner().invoke(cli, ["nonsense"])
    assert result.exit_code == 2
    assert "No such command 'nonsense'" in result.output
