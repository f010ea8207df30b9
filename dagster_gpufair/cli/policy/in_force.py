"""``gpufair policy show``: the policy in force, a sentence for each rule."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from rich.console import RenderableType

from dagster_gpufair.cli.instance.opening import no_policy, opened_ledger
from dagster_gpufair.cli.instance.option import instance_option
from dagster_gpufair.cli.output.json_output import json_option, show_json
from dagster_gpufair.cli.output.tables import headline, show, warning
from dagster_gpufair.cli.output.text import plain, sentence
from dagster_gpufair.cli.output.times import clock
from dagster_gpufair.cli.policy.problem_lines import lines_of, problems_json
from dagster_gpufair.cli.policy.versions import version_json
from dagster_gpufair.ledger import policies, status
from dagster_gpufair.ledger.policies import PolicyVersion
from dagster_gpufair.ledger.status import POLICY_FILE
from dagster_gpufair.policy.loading import parse_policy
from dagster_gpufair.policy.models import Policy
from dagster_gpufair.policy.notes import notes_of
from dagster_gpufair.policy.plain import sentences
from dagster_gpufair.policy.problems import Problem


@click.command("show")
@click.option("--yaml", "as_yaml", is_flag=True, help="Print the file as it was adopted.")
@instance_option
@json_option
def show_policy(as_yaml: bool, home: Path | None, as_json: bool) -> None:
    """The policy in force, a sentence for each rule."""
    if as_yaml and as_json:
        raise click.UsageError("--yaml and --json exclude each other.")
    with opened_ledger(home) as opened, opened.ledger.reading() as session:
        version = policies.in_force(session)
        if version is None:
            raise no_policy(opened.instance)
        trouble = status.get(session, POLICY_FILE)
    if as_yaml:
        click.echo(version.document, nl=not version.document.endswith("\n"))
        return
    read = parse_policy(version.document, f"policy v{version.version}")
    if as_json:
        show_json({**version_json(version), **_rules_json(read), "file_trouble": trouble})
        return
    show(*_in_words(version, read, trouble))


def _in_words(
    version: PolicyVersion, read: Policy, trouble: dict[str, Any] | None
) -> Iterator[RenderableType]:
    since = clock(version.adopted_at, time.time())
    yield headline(f"policy v{version.version}, in force since {since}")
    yield f"adopted by {plain(version.adopted_by)} from {sentence(version.source)}"
    yield ""
    yield from (sentence(said) for said in sentences(read))
    notes = notes_of(read)
    if notes:
        yield ""
        yield from lines_of(notes)
    if trouble:
        yield ""
        yield warning(
            f"{sentence(str(trouble['file']))} cannot take effect. Policy v{version.version} stays in "
            "force:"
        )
        problems = [Problem(one["path"], one["message"]) for one in trouble["problems"]]
        yield from lines_of(problems)
    yield ""
    yield "`gpufair policy show --yaml` prints it as written, `gpufair policy history` its earlier versions."


def _rules_json(read: Policy) -> dict[str, Any]:
    return {
        "policy": read.model_dump(mode="json", by_alias=True),
        "sentences": sentences(read),
        "notes": problems_json(notes_of(read)),
    }
