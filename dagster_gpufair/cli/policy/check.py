"""``gpufair policy check``: everything that is wrong with a policy file, and what it would stop now."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import RenderableType
from rich.padding import Padding

from dagster_gpufair.cli.instance.option import instance_option
from dagster_gpufair.cli.output.json_output import json_option, show_json
from dagster_gpufair.cli.output.tables import show
from dagster_gpufair.cli.output.text import counted, sentence
from dagster_gpufair.cli.policy.problem_lines import lines_of, problems_json
from dagster_gpufair.cli.policy.would_stop import all_that_would_stop, stop_json
from dagster_gpufair.engine.as_off import not_carried_out
from dagster_gpufair.policy.loading import read_policy
from dagster_gpufair.policy.models import Policy
from dagster_gpufair.policy.notes import notes_of
from dagster_gpufair.policy.problems import PolicyError

if TYPE_CHECKING:
    from dagster_gpufair.cli.policy.stops_now import StopsNow

_DEFAULT_FILE = Path("gpufair.yaml")


@click.command()
@click.argument("file", required=False, type=click.Path(path_type=Path))
@instance_option
@json_option
def check(file: Path | None, home: Path | None, as_json: bool) -> None:
    """Say everything that is wrong with a policy file; exit 1 if it cannot take effect.

    FILE is by default the one that the instance follows, else gpufair.yaml in this folder.
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
    notes = notes_of(read)
    stops = _stops(read, home)
    if as_json:
        data = {"file": str(file), "ok": True, "problems": problems_json(notes)}
        told = None if stops is None else [stop_json(stop) for stop in stops.all]
        show_json({**data, "not_carried_out": not_carried_out(read), "would_stop": told})
        return
    pools, teams = counted(len(read.pools), "pool"), counted(len(read.teams), "team")
    show(f"{sentence(str(file))}: no errors, {pools}, {teams}", *lines_of(notes))
    show(*_stopped(stops))


def _stops(read: Policy, home: Path | None) -> StopsNow | None:
    """None where a file stops nothing ever, or there is no instance with a GPU ledger to ask."""
    if not not_carried_out(read):
        return None
    # It opens the instance: a file that stops nothing is checked without it.
    from dagster_gpufair.cli.policy.stops_now import stops_now

    return stops_now(read, home)


def _stopped(stops: StopsNow | None) -> Iterator[RenderableType]:
    if stops is not None:
        for depth, line in all_that_would_stop(stops.all, stops.names):
            yield Padding(line, (0, 0, 0, 2 * depth))


def _followed_file(home: Path | None) -> tuple[Path, str]:
    """The file of the instance, and what an error in it would mean; without one, the file here."""
    from dagster_gpufair.cli.instance.opening import coordinator_of, opened
    from dagster_gpufair.ledger import policies
    from dagster_gpufair.ledger.connect import ledger_of

    nobody_says = home is None and not os.environ.get("DAGSTER_HOME")
    try:
        with opened(home) as instance:
            coordinator = coordinator_of(instance)
            if coordinator is None:
                return _DEFAULT_FILE, ""
            with ledger_of(instance).reading() as session:
                version = policies.in_force(session)
            stays = f"v{version.version} stays in force" if version else "no policy is in force"
            return coordinator.policy_watch.path, f"nothing changed ({stays})"
    except click.ClickException:
        if nobody_says and _DEFAULT_FILE.exists():
            return _DEFAULT_FILE, ""
        raise
