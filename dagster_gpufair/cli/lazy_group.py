"""A group of commands whose modules are imported only when one of them is called.

Dagster takes a second to import, SQLAlchemy and pydantic a third of one each: ``gpufair --version``
and ``gpufair --help`` need none of them, and no command needs all.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple

import click


class LazyCommand(NamedTuple):
    """Where a command is defined, and the line that the group's help has of it."""

    module: str
    name: str
    summary: str


class LazyGroup(click.Group):
    """``click.Group`` with commands by reference."""

    def __init__(self, *args: Any, lazy: Mapping[str, LazyCommand], **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order in which they are given: what people ask most comes first."""
        return list(self._lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command itself, with all that its module imports."""
        found = self._lazy.get(cmd_name)
        if found is None:
            return None
        command: click.Command = getattr(import_module(found.module), found.name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list in ``--help``, without importing any of them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, each.summary) for name, each in self._lazy.items()])
