"""``gpufair policy check``: everything that is wrong with a policy file, and what it would change now."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import click
from rich.console import RenderableType
from rich.padding import Padding

from dagster_gpufair.cli.instance.option import instance_option, may_be_here
from dagster_gpufair.cli.output.json_output import json_option, show_json
from dagster_gpufair.cli.output.tables import show
from dagster_gpufair.cli.output.text import counted, sentence
from dagster_gpufair.cli.policy.problem_lines import lines_of, problems_json
from dagster_gpufair.cli.policy.what_changes import (
    OnInstance,
    all_left_behind,
    left_behind_json,
    workspace_locations,
)
from dagster_gpufair.cli.policy.would_stop import all_that_would_stop, stop_json
from dagster_gpufair.policy.loading import read_policy
from dagster_gpufair.policy.models import Policy
from dagster_gpufair.policy.notes import notes_of, unknown_locations
from dagster_gpufair.policy.problems import PolicyError

_DEFAULT_FILE = Path("gpufair.yaml")


@click.command()
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option(
    "-w",
    "--workspace",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The workspace file with the code locations [default: workspace.yaml beside FILE or here].",
)
@instance_option
@json_option
def check(file: Path | None, workspace: Path | None, home: Path | None, as_json: bool) -> None:
    """Say everything that is wrong with a policy file; exit 1 if it cannot take effect.

    FILE is by default the one that the instance follows, else gpufair.yaml in this folder. With an
    instance, also which runs the change would leave behind.
    """
    consequence = ""
    if file is None:
        file, consequence = _followed_file(home)
    try:
        _, read = read_policy(file)
    except PolicyError as error:
        if as_json:
            show_json({"file": str(file), "ok": False, "problems": problems_json(error.problems)})
        else:
            show(*(sentence(line) for line in error.report(consequence).splitlines()))
        raise SystemExit(1) from None
    found = _found(read, home)
    named = any(team.code_locations for team in read.teams.values())
    in_workspace = workspace_locations(workspace, file) if named or workspace else None
    notes = [*notes_of(read), *unknown_locations(read, in_workspace, found.locations)]
    if as_json:
        told = None if found.stops is None else [stop_json(stop) for stop in found.stops]
        show_json(
            {
                "file": str(file),
                "ok": True,
                "problems": problems_json(notes),
                "would_stop": told,
                "left_behind": [left_behind_json(group) for group in found.left],
            }
        )
        return
    pools, teams = counted(len(read.pools), "pool"), counted(len(read.teams), "team")
    show(f"{sentence(str(file))}: no errors, {pools}, {teams}", *lines_of(notes))
    show(*_indented(all_left_behind(found.left, found.names)))
    if found.stops is not None:
        show(*_indented(all_that_would_stop(found.stops, found.names)))


def _found(read: Policy, home: Path | None) -> OnInstance:
    if home is None and not may_be_here():
        return OnInstance()
    # What reads an instance takes a third of a second to import.
    from dagster_gpufair.cli.policy.on_instance import on_instance

    return on_instance(read, home)


def _indented(lines: Iterable[tuple[int, str]]) -> Iterator[RenderableType]:
    for depth, line in lines:
        yield Padding(line, (0, 0, 0, 2 * depth))


def _followed_file(home: Path | None) -> tuple[Path, str]:
    """The file of the instance, and what an error in it would mean; without one, the file here."""
    from dagster_gpufair.cli.instance.opening import opened_ledger
    from dagster_gpufair.ledger import policies

    nobody_says = home is None and not os.environ.get("DAGSTER_HOME")
    try:
        with opened_ledger(home) as opened:
            if opened.policy_file is None:
                return _DEFAULT_FILE, ""
            with opened.ledger.reading() as session:
                version = policies.in_force(session)
            stays = f"v{version.version} stays in force" if version else "no policy is in force"
            return opened.policy_file, f"nothing changed ({stays})"
    except click.ClickException:
        if nobody_says and _DEFAULT_FILE.exists():
            return _DEFAULT_FILE, ""
        raise
