"""``gpufair init``: a policy to start from, and the lines for ``dagster.yaml``."""

from __future__ import annotations

from pathlib import Path

import click

from dagster_gpufair.cli.output.text import sentence
from dagster_gpufair.policy.starter import starter_text

FILE_NAME = "gpufair.yaml"

_NEXT = """\
{file} is written. Change its pools, teams and numbers to yours.

These lines in dagster.yaml turn it on:

run_coordinator:
  module: dagster_gpufair
  class: GpuFairRunCoordinator
  config: {{policy: {name}, max_concurrent_runs: -1, dequeue_interval_seconds: 1}}

Dagster runs ten runs at once by default; -1 leaves the limit to the GPUs. Options that stood under
`run_queue:` belong under `config:` now.

Then: gpufair policy check {file}
"""


@click.command()
@click.argument("folder", metavar="[DIR]", default=".", type=click.Path(path_type=Path))
def init(folder: Path) -> None:
    """Write a policy to start from.

    It goes into DIR (by default this folder), beside dagster.yaml. A file that is there already
    stays as it is.
    """
    path = folder / FILE_NAME
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(starter_text())
    except FileExistsError as error:
        there = path if path.exists() else folder
        raise click.ClickException(
            f"{sentence(str(there))} exists already and was not changed. Check it with "
            f"`gpufair policy check {sentence(str(path))}`, or give another DIR."
        ) from error
    except OSError as error:
        raise click.ClickException(
            f"{sentence(str(path))} cannot be written: {error.strerror or error}"
        ) from error
    click.echo(_NEXT.format(file=sentence(str(path)), name=FILE_NAME), nl=False)
