"""``gpufair policy``: the policy in force, its versions, and whether a file could take its place."""

from __future__ import annotations

import click

from dagster_gpufair.cli.lazy_group import LazyCommand, LazyGroup

COMMANDS = {
    name: LazyCommand(f"dagster_gpufair.cli.policy.{module}", function, summary)
    for name, module, function, summary in (
        ("check", "check", "check", "Say everything that is wrong with a policy file."),
        ("show", "in_force", "show_policy", "The policy in force, a sentence for each rule."),
        ("history", "versions", "history", "All policies that were ever in force."),
        ("schema", "schema", "schema", "The JSON Schema of the policy file."),
    )
}


@click.group(cls=LazyGroup, lazy=COMMANDS)
def policy() -> None:
    """The policy in force, its versions, and checks of a file."""
