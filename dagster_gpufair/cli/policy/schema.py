"""``gpufair policy schema``: the JSON Schema of the policy file, for editors."""

from __future__ import annotations

import json

import click

from dagster_gpufair.cli.output.json_output import json_option, show_json
from dagster_gpufair.policy.schema import json_schema


@click.command()
@json_option
def schema(as_json: bool) -> None:
    """The JSON Schema of the policy file, for editors.

    Without --json it is the schema alone, as an editor takes it.
    """
    if as_json:
        show_json({"json_schema": json_schema()})
    else:
        click.echo(json.dumps(json_schema(), indent=2))
