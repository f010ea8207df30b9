"""``gpufair policy``: the policy in force, its history, and whether a file could take its place."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
from rich.console import RenderableType
from rich.padding import Padding

from dagster_gpufair.cli.instance.opening import coordinator_of, instance_option, no_policy, opened
from dagster_gpufair.cli.moment.current import short_ids
from dagster_gpufair.cli.output.json_output import iso, json_option, show_json
from dagster_gpufair.cli.output.tables import (
    Column,
    clock,
    counted,
    headline,
    plain,
    sentence,
    show,
    table,
    warning,
)
from dagster_gpufair.cli.policy.would_stop import all_that_would_stop, stop_json
from dagster_gpufair.engine.as_off import not_carried_out, would_stop
from dagster_gpufair.ledger import policies, status
from dagster_gpufair.ledger.connect import ledger_of
from dagster_gpufair.ledger.errors import LedgerError
from dagster_gpufair.ledger.policies import PolicyVersion
from dagster_gpufair.ledger.state import state_of
from dagster_gpufair.ledger.status import POLICY_FILE
from dagster_gpufair.policy.loading import parse_policy, read_policy
from dagster_gpufair.policy.models import Policy
from dagster_gpufair.policy.notes import notes_of
from dagster_gpufair.policy.plain import sentences
from dagster_gpufair.policy.problems import PolicyError, Problem, problem_lines
from dagster_gpufair.policy.schema import json_schema
from dagster_gpufair.scheduling.model import Preemption

_DEFAULT_FILE = Path("gpufair.yaml")


@click.group()
def policy() -> None:
    """The policy in force, its history, its checks."""


@policy.command()
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
            show_json({"file": str(file), "ok": False, "problems": _problems_json(error.problems)})
        else:
            show(*(sentence(line) for line in error.report(consequence).splitlines()))
        raise SystemExit(1) from None
    notes = notes_of(read)
    stops = _stops(read, home)
    if as_json:
        data = {"file": str(file), "ok": True, "problems": _problems_json(notes)}
        told = None if stops is None else [stop_json(stop) for stop in stops.all]
        show_json({**data, "not_carried_out": not_carried_out(read), "would_stop": told})
        return
    pools, teams = counted(len(read.pools), "pool"), counted(len(read.teams), "team")
    show(f"{sentence(str(file))}: no errors, {pools}, {teams}", *_problem_lines(notes))
    show(*_stopped(stops))


@policy.command("show")
@click.option("--yaml", "as_yaml", is_flag=True, help="Print the file as it was adopted.")
@instance_option
@json_option
def show_policy(as_yaml: bool, home: Path | None, as_json: bool) -> None:
    """The policy in force, a sentence for each rule."""
    if as_yaml and as_json:
        raise click.UsageError("--yaml and --json cannot be had together.")
    with opened(home) as instance, ledger_of(instance).reading() as session:
        version = policies.in_force(session)
        if version is None:
            raise no_policy(instance)
        trouble = status.get(session, POLICY_FILE)
    if as_yaml:
        click.echo(version.document, nl=not version.document.endswith("\n"))
        return
    read = parse_policy(version.document, f"policy v{version.version}")
    if as_json:
        show_json({**_version_json(version), **_rules_json(read), "file_trouble": trouble})
        return
    show(*_in_words(version, read, trouble))


@policy.command()
@json_option
def schema(as_json: bool) -> None:
    """The JSON Schema of the policy file, for editors. It is JSON with and without --json."""
    show_json(json_schema())


@policy.command()
@instance_option
@json_option
def history(home: Path | None, as_json: bool) -> None:
    """All policies that were ever in force, the newest first."""
    with opened(home) as instance, ledger_of(instance).reading() as session:
        versions = policies.history(session)[::-1]
        if not versions:
            raise no_policy(instance)
    if as_json:
        show_json({"versions": [_version_json(version) for version in versions]})
        return
    now = time.time()
    columns = [Column("policy"), Column("since"), Column("adopted by"), Column("from", wraps=True)]
    rows = [
        (
            f"v{version.version}",
            clock(version.adopted_at, now),
            plain(version.adopted_by),
            sentence(version.source),
        )
        for version in versions
    ]
    show(
        table(columns, rows),
        "",
        f"v{versions[0].version} is in force; `gpufair policy show` says what it means.",
    )


class _Stops(NamedTuple):
    """What a policy would stop now on the instance, and the names of all that runs or waits there."""

    all: Sequence[Preemption]
    names: Mapping[str, str]


def _stops(read: Policy, home: Path | None) -> _Stops | None:
    """None where nothing would be stopped ever, or there is no instance with a GPU ledger to ask."""
    if not not_carried_out(read):
        return None
    now = time.time()
    try:
        with opened(home) as instance:
            if coordinator_of(instance) is None:
                return None
            with ledger_of(instance).reading() as session:
                state = state_of(session, read, now)
    except (click.ClickException, LedgerError):
        # The file is what was asked about; only who is named by hand has to be there.
        if home is not None:
            raise
        return None
    ids = [*(request.id for request in state.requests), *(lease.id for lease in state.leases)]
    return _Stops(would_stop(read, state, now), short_ids(ids))


def _stopped(stops: _Stops | None) -> Iterator[RenderableType]:
    if stops is not None:
        for depth, line in all_that_would_stop(stops.all, stops.names):
            yield Padding(line, (0, 0, 0, 2 * depth))


def _followed_file(home: Path | None) -> tuple[Path, str]:
    """The file of the instance, and what an error in it would mean; without one, the file here."""
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
        yield from _problem_lines(notes)
    if trouble:
        yield ""
        yield warning(
            f"{sentence(str(trouble['file']))} has been changed since and cannot take effect:"
        )
        problems = [Problem(one["path"], one["message"]) for one in trouble["problems"]]
        yield from _problem_lines(problems)
    yield ""
    yield "`gpufair policy show --yaml` prints it as written, `gpufair policy history` what came before."


def _problem_lines(problems: Sequence[Problem]) -> list[str]:
    return [sentence(line) for line in problem_lines(problems)]


def _problems_json(problems: Sequence[Problem]) -> list[dict[str, str]]:
    return [
        {"path": problem.path, "message": problem.message, "severity": problem.severity}
        for problem in problems
    ]


def _version_json(version: PolicyVersion) -> dict[str, Any]:
    return {
        "version": version.version,
        "since": iso(version.adopted_at),
        "by": version.adopted_by,
        "source": version.source,
        "digest": version.digest,
    }


def _rules_json(read: Policy) -> dict[str, Any]:
    return {
        "policy": read.model_dump(mode="json", by_alias=True),
        "sentences": sentences(read),
        "notes": _problems_json(notes_of(read)),
    }
